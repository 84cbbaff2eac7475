//! Given hosts, without asking any.

use std::{cell::Cell, fs, process::Command};

use tokio::time::sleep;

use super::*;

#[tokio::test(start_paused = true)]
async fn no_more_hosts_are_asked_at_once_than_allowed() {
    for (at_once, expected) in [(0, 1), (1, 1), (4, 4), (100, 20)] {
        let (now, most) = (Cell::new(0_usize), Cell::new(0));
        let looks = (0..20).map(|number| {
            let (now, most) = (&now, &most);
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                sleep(SHORT).await;
                now.set(now.get() - 1);
                number
            }
        });
        assert_eq!(some_at_once(at_once, looks).await, (0..20).collect::<Vec<_>>());
        assert_eq!(most.get(), expected, "{at_once}");
    }
}

/// Hosts with and without keys of their own.
const DOCUMENT: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata: { name: site }
providers:
  rack:
    static:
      pools:
        all:
        - { name: pinned, address: 192.0.2.11, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA] }
        - { name: listed, address: 192.0.2.12, port: 2222 }
cluster:
  controlPlane: { provider: rack, pool: all, nodes: 1 }
software:
  kubernetes: 1.37.1
  versions: { containerd: 2.1.4 }
  repositories: [{ name: site, uri: 'https://packages.example', suite: ./, keyFile: /etc/site.asc }]
ssh: { user: ops, knownHosts: known_hosts }
";

async fn computes(known_hosts: Option<&str>, record: bool) -> StaticComputes {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("known_hosts"), "").unwrap();
    let infrastructure = crate::desired::parse(DOCUMENT, &place.path().join("x.yaml")).unwrap();
    let name: ProviderName = "rack".parse().unwrap();
    let crate::desired::Provider::Static(wanted) = &infrastructure.providers[&name] else {
        panic!("not static")
    };
    let reach = Reach {
        ssh: infrastructure.ssh.clone(),
        key: Some("/keys/id".into()),
        known_hosts: known_hosts.map(PathBuf::from),
        record,
        directory: tempfile::tempdir().unwrap(),
    };
    let (owner, connections) = (infrastructure.metadata.name.clone(), Arc::new(Connections::new().unwrap()));
    StaticComputes::new(name, owner, wanted, reach, connections, &infrastructure.software).await.unwrap()
}

#[tokio::test]
async fn a_host_is_trusted_by_its_keys_or_by_the_file_and_recorded_only_on_demand() {
    const FILE: &str = "/site/known_hosts";
    for (host, file, flag, trusts_file, record) in [
        ("pinned", None, false, false, false),
        ("pinned", None, true, false, false),
        // The file does not widen what the document says, and is not written for it.
        ("pinned", Some(FILE), false, false, false),
        ("pinned", Some(FILE), true, false, false),
        ("listed", Some(FILE), false, true, false),
        ("listed", Some(FILE), true, true, true),
        // There is nowhere to take it down.
        ("listed", None, true, false, false),
    ] {
        let case = format!("{host}, {file:?}, {flag}");
        let computes = computes(file, flag).await;
        let (_, found) = computes.find(&host.parse().unwrap()).unwrap();
        let Access { destination: _, config, user, port, key, known_hosts, record: records } =
            computes.reach(found);
        let trusted = if trusts_file { Path::new(FILE) } else { computes.pinned.as_path() };
        assert_eq!(known_hosts.unwrap(), PathBuf::from(format!("\"{}\"", trusted.display())), "{case}");
        assert_eq!(records, record, "{case}");
        assert_eq!((user.as_deref(), key), (Some("ops"), Some("/keys/id".into())), "{case}");
        assert_eq!(port, Some(if host == "listed" { 2222 } else { 22 }), "{case}");
        assert_eq!(fs::read_to_string(config.unwrap()).unwrap(), TRUST, "{case}");
    }
}

#[tokio::test]
async fn only_the_documents_keys_are_in_the_file_of_pinned_ones() {
    let computes = computes(None, false).await;
    let pinned = fs::read_to_string(&computes.pinned).unwrap();
    assert_eq!(pinned, "192.0.2.11 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA\n");
}

/// What ssh makes of it, where there is ssh.
#[tokio::test]
async fn keys_of_this_computer_do_not_count() {
    let computes = computes(None, false).await;
    let ssh = Command::new("ssh").arg("-G").arg("-F").arg(&computes.trust).arg("192.0.2.11").output();
    let Ok(output) = ssh else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in ["globalknownhostsfile /dev/null", "updatehostkeys false", "verifyhostkeydns false"] {
        assert!(text.lines().any(|known| known == line), "no {line} in {text}");
    }
    assert!(!text.contains("knownhostscommand /"), "{text}");
}

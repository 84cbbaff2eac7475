//! What a host says of itself: one script, one answer.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use common::{metadata::InitializedMark, state::State};
use serde::{Deserialize, Serialize};

use super::{
    error::Error,
    kubeadm::{BEGUN, DONE, UNIT},
    ssh::Remote,
};

/// The mark of ownership on hosts that a provider cannot mark otherwise.
pub const OWNER: &str = "/var/lib/infrop/owner.json";

/// Looking takes a fraction of a second; a host that swaps or has a full disk may be slow.
const INSPECT_LIMIT: Duration = Duration::from_secs(30);

/// Who uses a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The name of the infrastructure.
    pub infrastructure: String,
}

/// What a host says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostReport {
    /// The boot it is in.
    pub boot_id: String,
    /// Who uses it, as marked on it.
    pub owner: Option<Owner>,
    /// The version of the installed node-agent package.
    pub agent_package: Option<String>,
    /// The sha256 of its metadata, settings and package as infrop last delivered them.
    pub delivered: Option<String>,
    /// The mark that it reached its metadata's plan.
    pub initialized: Option<InitializedMark>,
    /// What its agent does.
    pub agent: Option<State>,
    /// What kubeadm did there.
    pub kubeadm: KubeadmState,
    /// Whether its kubelet has a credential of a cluster.
    pub joined: bool,
    /// Whether it runs an API server.
    pub control_plane: bool,
    /// Its addresses, and the interface that has each.
    pub interfaces: BTreeMap<IpAddr, String>,
}

/// What kubeadm did on a host, at infrop's request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum KubeadmState {
    /// Nothing.
    #[default]
    None,
    /// It runs.
    Running,
    /// It ended well.
    Done,
    /// It failed, or the host went down meanwhile; the end of what it said.
    Failed(String),
}

/// What was delivered, written after all of it was.
pub(super) const DELIVERED: &str = "/var/lib/infrop/delivered";

/// The mark of node-agent that a plan is reached.
pub(super) const MARK: &str = "/var/lib/node-agent/initialized.json";

fn script() -> String {
    format!(
        "say() {{ printf '%s=%s\\n' \"$1\" \"$(base64 --wrap=0)\"; }}\n\
         file() {{ if test -e \"$2\"; then say \"$1\" < \"$2\"; fi; }}\n\
         say boot < /proc/sys/kernel/random/boot_id\n\
         file owner {OWNER}\n\
         file delivered {DELIVERED}\n\
         file initialized {MARK}\n\
         {{ dpkg-query --show --showformat='${{db:Status-Status}} ${{Version}}' node-agent 2>/dev/null || true; }} | say package\n\
         {{ node-agent status -o json 2>/dev/null || true; }} | say agent\n\
         file begun {BEGUN}\n\
         file done {DONE}\n\
         {{ systemctl show {UNIT} --property=ActiveState --property=SubState --value | tr '\\n' ' '; }} | say unit\n\
         if test -e {BEGUN} -a ! -e {DONE}; then\n\
             {{ journalctl --unit={UNIT} --output=cat --lines=15 --no-pager || true; }} | say log\n\
         fi\n\
         if test -e /etc/kubernetes/kubelet.conf; then echo yes | say joined; fi\n\
         if test -e /etc/kubernetes/manifests/kube-apiserver.yaml; then echo yes | say controlplane; fi\n\
         {{ ip -oneline address show scope global 2>/dev/null || true; }} | say addresses\n"
    )
}

/// Asks a host.
pub async fn inspect(remote: &Remote) -> Result<HostReport, Error> {
    let text = remote.run("look at itself", INSPECT_LIMIT, &script()).await?;
    parse(&text).map_err(|why| Error::Answer { host: remote.host().clone(), what: "what it is", why })
}

fn parse(text: &str) -> Result<HostReport, String> {
    let mut answers = BTreeMap::new();
    for line in text.lines() {
        let (key, value) = line.split_once('=').ok_or_else(|| format!("no = in {line:?}"))?;
        let bytes = BASE64.decode(value).map_err(|error| format!("{key}: {error}"))?;
        answers.insert(key, String::from_utf8_lossy(&bytes).trim().to_owned());
    }
    let get = |key: &str| answers.get(key).filter(|value| !value.is_empty()).cloned();
    let agent_package =
        get("package").and_then(|package| package.strip_prefix("installed ").map(str::to_owned));
    // One of a newer agent may have phases and reasons that are not known here. The host is looked at all the same: its
    // package's version says that a newer infrop is needed.
    let agent = get("agent").and_then(|status| match agent(&status) {
        Ok(state) => state,
        Err(error) => {
            tracing::debug!(
                package = agent_package,
                "what node-agent says of itself cannot be read: {error}"
            );
            None
        }
    });
    let unit = get("unit").unwrap_or_default();
    let kubeadm = if answers.contains_key("done") {
        KubeadmState::Done
    } else if !answers.contains_key("begun") {
        KubeadmState::None
    } else if unit == "active running"
        // On its way from or to another state: what it left is not to be removed under its feet.
        || unit.starts_with("activating")
        || unit.starts_with("deactivating")
    {
        KubeadmState::Running
    } else {
        KubeadmState::Failed(get("log").unwrap_or_default())
    };
    Ok(HostReport {
        boot_id: get("boot").ok_or("no boot id")?,
        owner: json("owner", get("owner"))?,
        agent_package,
        delivered: get("delivered"),
        initialized: json("initialized", get("initialized"))?,
        agent,
        kubeadm,
        joined: answers.contains_key("joined"),
        control_plane: answers.contains_key("controlplane"),
        interfaces: get("addresses").unwrap_or_default().lines().filter_map(interface).collect(),
    })
}

/// The state in the answer of `node-agent status`; without a running service there is none.
fn agent(status: &str) -> Result<Option<State>, serde_json::Error> {
    let status: serde_json::Value = serde_json::from_str(status)?;
    let state = status.pointer("/service/state").filter(|state| !state.is_null());
    state.cloned().map(serde_json::from_value).transpose()
}

/// Of a line such as `2: eth0    inet 192.0.2.11/24 brd 192.0.2.255 scope global eth0\ …`.
fn interface(line: &str) -> Option<(IpAddr, String)> {
    let mut words = line.split_whitespace().skip(1);
    let (name, _family, address) = (words.next()?, words.next()?, words.next()?);
    let address = address.split('/').next()?.parse().ok()?;
    Some((address, name.to_owned()))
}

fn json<T: serde::de::DeserializeOwned>(name: &str, text: Option<String>) -> Result<Option<T>, String> {
    text.map(|text| serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(pairs: &[(&str, &str)]) -> String {
        pairs.iter().map(|(key, value)| format!("{key}={}\n", BASE64.encode(value))).collect()
    }

    #[test]
    fn a_bare_host_has_a_boot_id_and_nothing_else() {
        let report =
            parse(&say(&[("boot", "b\n"), ("package", ""), ("agent", ""), ("unit", "inactive dead ")]))
                .unwrap();
        assert_eq!(report.boot_id, "b");
        assert_eq!(report.kubeadm, KubeadmState::None);
        assert!(report.agent_package.is_none() && report.agent.is_none() && !report.joined);
    }

    #[test]
    fn what_kubeadm_did_is_told_by_marks_and_unit() {
        for (marks, unit, expected) in [
            (&["begun"][..], "active running ", KubeadmState::Running),
            (&["begun"], "activating start ", KubeadmState::Running),
            (&["begun"], "deactivating stop-post ", KubeadmState::Running),
            (&["begun"], "failed failed ", KubeadmState::Failed("why".into())),
            // The host lost its power: nobody knows the unit any more.
            (&["begun"], "inactive dead ", KubeadmState::Failed("why".into())),
            (&["begun", "done"], "active exited ", KubeadmState::Done),
            (&["begun", "done"], "inactive dead ", KubeadmState::Done),
            (&[], "inactive dead ", KubeadmState::None),
        ] {
            let mut pairs = vec![("boot", "b"), ("unit", unit), ("log", "why")];
            pairs.extend(marks.iter().map(|mark| (*mark, "init")));
            assert_eq!(parse(&say(&pairs)).unwrap().kubeadm, expected, "{marks:?} {unit}");
        }
    }

    #[test]
    fn the_interface_of_each_address_is_known() {
        let text = "2: host0    inet 10.88.0.11/24 brd 10.88.0.255 scope global host0\\       valid_lft forever\n\
            2: host0    inet 10.88.0.5/32 scope global host0\\       valid_lft forever\n\
            5: tun0    inet 192.0.2.1 peer 192.0.2.2/32 scope global tun0\\       valid_lft forever\n\
            6: eth1    inet6 2001:db8::1/64 scope global \\       valid_lft forever\n";
        let report = parse(&say(&[("boot", "b"), ("addresses", text)])).unwrap();
        let interfaces =
            report.interfaces.iter().map(|(address, name)| format!("{address} {name}")).collect::<Vec<_>>();
        assert_eq!(interfaces, ["10.88.0.5 host0", "10.88.0.11 host0", "192.0.2.1 tun0", "2001:db8::1 eth1"]);
    }

    #[test]
    fn the_state_of_a_newer_agent_hides_nothing_else() {
        let state = |phase: &str, reason: &str| {
            format!(
                r#"{{"service":{{"state":{{"phase":"{phase}","reason":"{reason}","message":"m","since":"2026-01-01T00:00:00Z","attempt":1,"bootId":"b","agentVersion":"9.0.0"}}}}}}"#
            )
        };
        for (phase, reason, known) in [
            ("Changing", "RebootDue", true),
            ("Pondering", "RebootDue", false),
            ("Changing", "MoonPhase", false),
        ] {
            let text = state(phase, reason);
            let pairs = [("boot", "b"), ("package", "installed 9.0.0"), ("agent", &text), ("delivered", "d")];
            let report = parse(&say(&pairs)).unwrap();
            assert_eq!(report.agent.is_some(), known, "{phase} {reason}: {report:?}");
            assert_eq!(report.agent_package.as_deref(), Some("9.0.0"));
            assert_eq!(report.delivered.as_deref(), Some("d"));
        }
        assert_eq!(parse(&say(&[("boot", "b"), ("agent", "no JSON")])).unwrap().agent, None);
    }

    #[test]
    fn half_an_answer_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("boot").is_err());
        assert!(parse("boot=%%%\n").is_err());
        assert!(parse(&say(&[("boot", "b"), ("initialized", "{")])).is_err());
    }
}

//! Hosts come and go while their lab runs, and wherever something is killed, the same calls end the same.

use std::{
    collections::BTreeSet,
    fs, io,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use futures::future::{join_all, try_join_all};
use images::{node, steps::Steps};
use infrop::provider::lab::{API_PORT, Definition, HostName, Lab, Lifetime, Plan, Power, Store};
use program::Program;
use tests::{
    api_server::is_running,
    bundles, infrop_path,
    lab::{BUNDLES, Clearing, TestLab, host, wait_for},
};

use super::ends::kill_supervisor;

/// What a host has on this computer.
#[derive(Debug)]
struct Traces {
    directory: PathBuf,
    mount: String,
    cgroups: Vec<PathBuf>,
    processes: Vec<u32>,
    card: String,
}

impl Traces {
    fn of(lab: &Lab, name: &HostName) -> anyhow::Result<Self> {
        let definition = lab.definition()?;
        let [.., number] = definition.host(name)?.address.octets();
        let machine = format!("{}-{number}", definition.id);
        let directory = lab.directory().join("hosts").join(name.as_str());
        let groups = fs::read_to_string(lab.directory().join("cgroups"))?;
        let cgroups: Vec<PathBuf> = groups.lines().map(|group| Path::new(group).join(&machine)).collect();
        let processes = cgroups.iter().flat_map(|group| processes_below(group)).collect();
        let mount = format!(" {} ", directory.join("root").display());
        Ok(Self { directory, mount, cgroups, processes, card: lab.bridge_port(name)? })
    }

    /// Whether mount and card are there, seen in the lab's own namespaces.
    async fn inside(&self, lab: &Lab) -> anyhow::Result<(bool, bool)> {
        let namespace = lab.network_namespace().await?;
        let process = namespace.ancestors().nth(2).context("a namespace is a process's")?;
        let mounted = fs::read_to_string(process.join("mountinfo"))?.contains(&self.mount);
        let enter = Program::new("nsenter").arg(format!("--net={}", namespace.display()));
        let cards = enter.args(["ip", "-brief", "link"]).run().await?;
        Ok((mounted, cards.contains(&self.card)))
    }

    async fn assert_there(&self, lab: &Lab) -> anyhow::Result<()> {
        ensure!(self.directory.is_dir() && self.processes.len() > 5, "{self:?}");
        ensure!(!self.cgroups.is_empty() && self.cgroups.iter().all(|group| group.is_dir()), "{self:?}");
        ensure!(self.inside(lab).await? == (true, true), "{self:?}");
        Ok(())
    }

    async fn assert_gone(&self, lab: &Lab) -> anyhow::Result<()> {
        ensure!(!self.directory.exists(), "{} is left", self.directory.display());
        ensure!(is_empty(&lab.directory().join("removed"))?, "files of a removed host are left");
        let left: Vec<&PathBuf> = self.cgroups.iter().filter(|group| group.exists()).collect();
        ensure!(left.is_empty(), "control groups are left: {left:?}");
        let left: Vec<&u32> = self.processes.iter().filter(|id| is_running(**id)).collect();
        ensure!(left.is_empty(), "processes are left: {left:?}");
        ensure!(self.inside(lab).await? == (false, false), "a mount or a card is left");
        Ok(())
    }
}

/// The processes in a group and those below it. A host that boots removes groups while we look.
fn processes_below(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut processes: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            processes.extend(processes_below(&entry.path()));
        }
    }
    processes
}

fn is_empty(directory: &Path) -> io::Result<bool> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => Ok(entries?.next().is_none()),
    }
}

fn names(definition: &Definition) -> BTreeSet<&str> {
    definition.hosts.iter().map(|host| host.name.as_str()).collect()
}

pub(super) async fn hosts_come_and_go() -> anyhow::Result<()> {
    TestLab::with("growth", &[], async |test| {
        let lab = test.lab();
        let (a, b) = (host("a")?, host("b")?);
        ensure!(lab.status().await?.hosts.is_empty() && lab.definition()?.api_address.is_none());
        // Not there is removed already.
        lab.remove_host(&a).await?;

        let first = lab.add_host(&a).await?;
        ensure!(lab.definition()?.api_address == Some(SocketAddrV4::new(first.address, API_PORT)));
        lab.wait_for_host(&a).await?;
        ensure!(lab.add_host(&a).await? == first, "what is there is made again");
        ensure!(test.run("a", "hostname; cat /root/file || true").await?.trim() == "a");
        test.run("a", "echo kept > /root/file").await?;
        test.power("a", Power::Off).await?;
        lab.add_host(&a).await?;
        lab.wait_for_host(&a).await?;
        ensure!(test.run("a", "cat /root/file").await?.trim() == "kept", "it is another host");

        let second = lab.add_host(&b).await?;
        ensure!(second.address != first.address && second.host_key != first.host_key);
        lab.wait_for_host(&b).await?;
        let boot = test.boot_id("b").await?;
        test.run("b", &format!("ping -c 1 -W 2 {}", first.address)).await?;

        // All of a goes, nothing of b.
        let traces = Traces::of(lab, &a)?;
        traces.assert_there(lab).await?;
        lab.remove_host(&a).await?;
        traces.assert_gone(lab).await?;
        lab.remove_host(&a).await?;
        ensure!(names(&lab.definition()?) == ["b"].into());
        let ssh = lab.directory().join("ssh");
        let known = fs::read_to_string(ssh.join("known_hosts"))?;
        ensure!(known.lines().count() == 1 && known.starts_with("b "), "{known}");
        ensure!(!fs::read_to_string(ssh.join("config"))?.contains("Host a\n"));
        ensure!(lab.ssh(&a).arg("true").run().await.is_err());

        // The same name and the same address again, but another host.
        let again = lab.add_host(&a).await?;
        ensure!(again.address == first.address && again.host_key != first.host_key, "{again:?}");
        lab.wait_for_host(&a).await?;
        ensure!(test.run("a", "test ! -e /root/file; hostname").await?.trim() == "a");
        ensure!(test.boot_id("b").await? == boot, "another host was touched");

        // Removed while it boots, as often as one likes.
        for _ in 0..5 {
            lab.remove_host(&a).await?;
            lab.add_host(&a).await?;
        }
        lab.wait_for_host(&a).await?;
        // Both at once: whichever comes last, the answers are true.
        let (removed, added) = tokio::join!(lab.remove_host(&a), lab.add_host(&a));
        removed?;
        added?;
        Ok(())
    })
    .await
}

pub(super) async fn ten_at_once() -> anyhow::Result<()> {
    TestLab::with("ten", &[], async |test| {
        let lab = test.lab();
        let names = (0..10).map(|number| host(&format!("h{number}"))).collect::<Result<Vec<_>, _>>()?;
        // Each is asked for twice.
        let hosts = try_join_all(names.iter().chain(&names).map(|name| lab.add_host(name))).await?;
        let addresses: BTreeSet<_> = hosts.iter().map(|host| host.address).collect();
        let last = addresses.last().map(std::net::Ipv4Addr::octets);
        ensure!(addresses.len() == 10 && last == Some([10, 88, 0, 20]), "{addresses:?}");
        let status = lab.status().await?;
        ensure!(status.hosts.len() == 10 && status.hosts.iter().all(|host| host.running && host.boots == 1));

        // Most go at once while they boot: ten hosts up would use most of the inotify instances that the kernel
        // gives root by default, and other labs need some.
        let (stay, go) = names.split_at(3);
        let traces = go.iter().map(|name| Traces::of(lab, name)).collect::<Result<Vec<_>, _>>()?;
        try_join_all(go.iter().chain(go).map(|name| lab.remove_host(name))).await?;
        for traces in &traces {
            traces.assert_gone(lab).await?;
        }
        try_join_all(stay.iter().map(|name| lab.wait_for_host(name))).await?;
        ensure!(lab.definition()?.hosts.len() == 3);
        try_join_all(stay.iter().map(|name| lab.remove_host(name))).await?;
        ensure!(lab.status().await?.hosts.is_empty() && is_empty(&lab.directory().join("hosts"))?);
        Ok(())
    })
    .await
}

/// A lab that outlives its maker, destroyed however the test ends.
async fn with_kept_lab(test: impl AsyncFnOnce(&Store, Lab) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let directory = Clearing::new()?;
    let store = Store::new(directory.path());
    let steps = Steps::stderr();
    let plan = Plan {
        name: "kept".parse()?,
        owner: Some("site".into()),
        hosts: Vec::new(),
        root: node::ensure(&bundles::cache()?, &steps).await?,
        lifetime: Lifetime::Kept,
        infrop: infrop_path()?.to_owned(),
    };
    let name = plan.name.clone();
    let lab = Lab::create(&store, plan, &steps).await?;
    let result = test(&store, lab).await;
    let destroyed = Lab::destroy(&store, &name).await;
    result?;
    destroyed?;
    ensure!(store.list()?.is_empty());
    Ok(())
}

pub(super) async fn killed_in_the_middle() -> anyhow::Result<()> {
    /// Moments in the work of a supervisor that makes two hosts and removes one.
    const MOMENTS: [u64; 8] = [0, 5, 10, 20, 40, 80, 120, 200];
    with_kept_lab(async |store, mut lab| {
        let hosts = ["a", "b", "c"].map(host).into_iter().collect::<Result<Vec<_>, _>>()?;
        for (round, moment) in MOMENTS.into_iter().enumerate() {
            let mut turn = hosts.clone();
            turn.rotate_left(round % 3);
            let [gone, one, two] = turn.as_slice() else { anyhow::bail!("there are three hosts") };
            lab.add_host(gone).await?;
            let root = lab.directory().to_owned();
            let work = async |lab: &Lab| {
                tokio::join!(
                    lab.add_host(one),
                    lab.remove_host(gone),
                    lab.remove_host(two),
                    lab.add_host(two)
                )
            };
            let (_, killed) = tokio::join!(work(&lab), async {
                tokio::time::sleep(Duration::from_millis(moment)).await;
                kill_supervisor(&root).await
            });
            killed?;
            lab = Lab::start(store, lab.name()).await?;
            let (added, removed, ..) = work(&lab).await;
            added?;
            removed?;
            lab.add_host(two).await?;

            let definition = lab.definition()?;
            ensure!(names(&definition) == [one.as_str(), two.as_str()].into(), "{definition:?}");
            let addresses: BTreeSet<_> = definition.hosts.iter().map(|host| host.address).collect();
            ensure!(addresses.len() == 2, "{definition:?}");
            let mut files = fs::read_dir(root.join("hosts"))?
                .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
                .collect::<Result<Vec<_>, _>>()?;
            files.sort();
            let expected = names(&definition);
            ensure!(files.iter().map(String::as_str).collect::<BTreeSet<_>>() == expected, "{files:?}");
            ensure!(is_empty(&root.join("removed"))?);
            ensure!(definition.owner.as_deref() == Some("site") && lab.status().await?.owner.is_some());
        }
        for name in &hosts {
            lab.add_host(name).await?;
        }
        try_join_all(hosts.iter().map(|name| lab.wait_for_host(name))).await?;

        // Two who start a stopped lab at once both have it.
        kill_supervisor(lab.directory()).await?;
        let labs = join_all([Lab::start(store, lab.name()), Lab::start(store, lab.name())]).await;
        for lab in labs {
            ensure!(lab?.status().await?.hosts.len() == 3);
        }
        Ok(())
    })
    .await
}

pub(super) async fn offers_appear() -> anyhow::Result<()> {
    TestLab::with("offers", &["a"], async |test| {
        let source = tempfile::tempdir()?;
        fs::create_dir(source.path().join("apt"))?;
        fs::write(source.path().join("apt/file"), "one")?;
        let read = format!("cat {BUNDLES}/late/apt/file");
        ensure!(test.run("a", &read).await.is_err());
        for _ in 0..2 {
            test.lab().offer("late", source.path()).await?;
            ensure!(test.run("a", &read).await? == "one");
        }
        let write = format!("echo two > {BUNDLES}/late/apt/file || touch {BUNDLES}/other");
        ensure!(test.run("a", &write).await.is_err(), "a host can change what it is offered");

        // Another content: by another file, for this one is the host's as well.
        fs::remove_file(source.path().join("apt/file"))?;
        fs::write(source.path().join("apt/file"), "three")?;
        ensure!(test.run("a", &read).await? == "one");
        test.lab().offer("late", source.path()).await?;
        ensure!(test.run("a", &read).await? == "three");
        // A host that comes later sees it, too.
        let b = host("b")?;
        test.lab().add_host(&b).await?;
        test.lab().wait_for_host(&b).await?;
        ensure!(test.run("b", &format!("{read}; ls {BUNDLES}")).await?.contains("1.37.1"));
        Ok(())
    })
    .await
}

pub(super) async fn the_port_is_led() -> anyhow::Result<()> {
    TestLab::with("leading", &[], async |test| {
        let lab = test.lab();
        let port = lab.status().await?.api_port;
        let call = async || super::call(port).await;
        // No host, no endpoint: the connection ends at once.
        ensure!(call().await?.is_empty());
        for name in ["a", "b"] {
            lab.add_host(&host(name)?).await?;
        }
        for name in ["a", "b"] {
            lab.wait_for_host(&host(name)?).await?;
            let serve = "systemd-run --quiet socat TCP-LISTEN:6443,fork,reuseaddr SYSTEM:'hostname'";
            test.run(name, serve).await?;
        }
        let definition = lab.directory().join("lab.json");
        for name in ["a", "b", "b", "a"] {
            let address = SocketAddrV4::new(lab.definition()?.host(&host(name)?)?.address, API_PORT);
            let before = (lab.definition()?.api_address, definition.metadata()?.modified()?);
            lab.lead_api(address).await?;
            let unchanged = definition.metadata()?.modified()? == before.1;
            ensure!(unchanged == (before.0 == Some(address)), "it is written only if it changes");
            wait_for(Duration::from_secs(10), "the port leads to another host", async || {
                Ok(call().await.is_ok_and(|answer| answer.trim() == name))
            })
            .await?;
        }
        Ok(())
    })
    .await
}

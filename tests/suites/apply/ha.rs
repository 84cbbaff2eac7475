//! Three control planes behind an address that they carry themselves, and the loss of the one that has it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use infrop::provider::lab::{Lab, Power};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use tests::{
    faults::{Faults, Party},
    infrastructure::{Infrastructure, example},
    lab::wait_for,
};

use super::{
    course::Course,
    life::{nothing_is_left_lying, ready},
};

const NAME: &str = "ha";

/// The address of the endpoint.
const ADDRESS: &str = "10.88.0.5";

const NODES: [&str; 5] = ["control-1", "control-2", "control-3", "worker-1", "worker-2"];

/// Until one of them has the address for good; a busy machine makes them wait for each other.
const SETTLED: Duration = Duration::from_mins(1);

/// A host without power never answers, a busy one late.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// How long a call may take. haproxy tries a server that is gone for a second and then another one, and whoever has far too
/// much to do takes as long for itself.
const CALL_LIMIT: Duration = Duration::from_secs(3);

/// How long the endpoint may be silent after a power cut.
const LONGEST_GAP: Duration = Duration::from_secs(10);

pub(crate) async fn holder_is_lost() -> anyhow::Result<()> {
    Infrastructure::new(NAME, &example("lab-ha.yaml", NAME)?)?
        .with(async |infrastructure| {
            let started = Instant::now();
            bring_up_with_a_broken_link(infrastructure).await?;
            eprintln!("from nothing to 3 + 2: {:.1} s", started.elapsed().as_secs_f64());
            ready(infrastructure, &NODES).await?;
            // Two control planes were given certificates.
            nothing_is_left_lying(infrastructure, &NODES).await?;
            let again = infrastructure.insist(&["apply"]).await?;
            ensure!(again.contains("Nothing to do"), "{again}");

            let lab = infrastructure.lab()?;
            let client = infrastructure.client().await?;
            holder_is_cut_off(infrastructure, &lab, &client).await?;
            let holder = holder(&lab).await?;
            ensure!(answers(&client).await, "the endpoint does not answer");
            let cut = Instant::now();
            lab.power(&holder.parse()?, Power::Cut).await?;
            let gap = last_failure(&client, cut).await;
            eprintln!("{holder} lost its power: the last call failed after {:.1} s", gap.as_secs_f64());
            ensure!(gap < LONGEST_GAP, "the endpoint does not answer without {holder}");
            ensure!(self::holder(&lab).await? != holder, "a host without power has the address");

            infrastructure.insist(&["apply"]).await?;
            // A Node is called Ready for a while after its host is gone: infrop waited for its new boot.
            let boot = lab.ssh(&holder.parse()?).arg("cat /proc/sys/kernel/random/boot_id").run().await?;
            let nodes = Api::<Node>::all(client.clone());
            let info = read(&nodes, &holder).await?.status.and_then(|status| status.node_info);
            ensure!(
                info.is_some_and(|info| info.boot_id == boot.trim()),
                "its Node speaks of the boot before"
            );
            ready(infrastructure, &NODES).await?;

            // One that is dead for good is replaced; its member of etcd goes, and another comes.
            let dead = self::holder(&lab).await?;
            let before = read(&nodes, &dead).await?.uid();
            lab.power(&dead.parse()?, Power::Cut).await?;
            let started = Instant::now();
            infrastructure.insist(&["node", "replace", &dead, "--yes"]).await?;
            eprintln!("{dead} was replaced: {:.1} s", started.elapsed().as_secs_f64());
            ready(infrastructure, &NODES).await?;
            ensure!(read(&nodes, &dead).await?.uid() != before, "it is the same Node");
            let again = infrastructure.insist(&["apply"]).await?;
            ensure!(again.contains("Nothing to do"), "{again}");
            only_one_is_left(&lab, &client).await?;
            shrinks(infrastructure, &lab).await
        })
        .await
}

/// The one that has the address lives, but nobody reaches it: another one takes the address, and when both can hear each
/// other again, one of them gives it up.
async fn holder_is_cut_off(
    infrastructure: &Infrastructure,
    lab: &Lab,
    client: &kube::Client,
) -> anyhow::Result<()> {
    let name = holder(lab).await?;
    ensure!(answers(client).await, "the endpoint does not answer");
    let faults = Faults::new(lab).await?;
    let others = NODES.into_iter().filter(|other| *other != name).map(Party::host);
    let others: Vec<Party> = others.chain([Ok(Party::Outside)]).collect::<anyhow::Result<_>>()?;
    let cut = Instant::now();
    for other in &others {
        faults.cut(Party::host(&name)?, other.clone()).await?;
    }
    let gap = last_failure(client, cut).await;
    eprintln!("{name} was cut off: the last call failed after {:.1} s", gap.as_secs_f64());
    ensure!(gap < LONGEST_GAP, "the endpoint does not answer without {name}");
    ensure!(holder(lab).await? != name, "a host that nobody reaches has the address");
    for other in &others {
        faults.heal(&Party::host(&name)?, other).await?;
    }
    // The address may go back to it, and connections to the other one break once more.
    wait_for(SETTLED, "one of them has the address, and all are Ready", async || {
        Ok(holder(lab).await.is_ok() && answers(client).await && ready(infrastructure, &NODES).await.is_ok())
    })
    .await
}

/// A bring-up during which all connections to a control plane break while kubeadm works there: kubeadm goes on, infrop
/// finds it again, and it is not begun a second time.
async fn bring_up_with_a_broken_link(infrastructure: &Infrastructure) -> anyhow::Result<()> {
    const JOINING: &str = "control-2";
    let mut apply = Course::start(infrastructure, &["apply", "--events"])?;
    apply.until(&format!("join {JOINING} as a control plane"), "...").await?;
    let lab = infrastructure.lab()?;
    let runs = "systemctl is-active infrop-kubeadm.service";
    wait_for(SETTLED, "kubeadm runs", async || Ok(lab.ssh(&JOINING.parse()?).arg(runs).run().await.is_ok()))
        .await?;
    // That of this command, too.
    let broken = lab.ssh(&JOINING.parse()?).arg("pkill -KILL -f '^sshd: root'").run().await;
    ensure!(broken.is_err(), "the connections are not broken");
    let ended = apply.end().await?;
    ensure!(ended.code == 0, "{ended:?}");
    let begun = "journalctl --quiet -u infrop-kubeadm.service -o cat | grep -c '^Started '";
    let begun = lab.ssh(&JOINING.parse()?).arg(begun).run().await?;
    ensure!(begun.trim() == "1", "kubeadm was begun {begun} times");
    Ok(())
}

/// Control planes that are not wanted any more go one after the other, and with them their members of etcd.
async fn shrinks(infrastructure: &Infrastructure, lab: &Lab) -> anyhow::Result<()> {
    for name in NODES.iter().filter(|name| name.starts_with("control-")) {
        lab.power(&name.parse()?, Power::On).await?;
    }
    wait_for(Duration::from_mins(3), "all are Ready again", async || {
        Ok(ready(infrastructure, &NODES).await.is_ok())
    })
    .await?;
    let started = Instant::now();
    infrastructure.edit("pool: control, nodes: 3", "pool: control, nodes: 1")?;
    infrastructure.insist(&["apply", "--yes", "--max-delete", "2"]).await?;
    eprintln!("from 3 control planes to 1: {:.1} s", started.elapsed().as_secs_f64());
    let left = ["control-1", "worker-1", "worker-2"];
    ready(infrastructure, &left).await?;
    let etcdctl = "etcdctl --cacert /etc/kubernetes/pki/etcd/ca.crt --cert /etc/kubernetes/pki/etcd/server.crt \
                   --key /etc/kubernetes/pki/etcd/server.key member list";
    let mut words = vec!["-n", "kube-system", "exec", "etcd-control-1", "--"];
    words.extend(etcdctl.split_whitespace());
    let members = infrastructure.kubectl(&words).await?;
    ensure!(members.lines().count() == 1 && members.contains("control-1"), "{members}");
    let again = infrastructure.insist(&["apply"]).await?;
    ensure!(again.contains("Nothing to do"), "{again}");
    Ok(())
}

/// Without most of etcd no API server is ready. One that is there is led to all the same, and answers what it can.
async fn only_one_is_left(lab: &Lab, client: &kube::Client) -> anyhow::Result<()> {
    let holder = holder(lab).await?;
    let now = jiff::Timestamp::now().as_second();
    for name in NODES.iter().filter(|name| name.starts_with("control-") && **name != holder) {
        lab.power(&name.parse()?, Power::Cut).await?;
    }
    let unready = format!("journalctl --quiet -u haproxy --since @{now} | grep -q 'Running on backup'");
    wait_for(SETTLED, "no API server is ready", async || {
        Ok(lab.ssh(&holder.parse()?).arg(&unready).run().await.is_ok())
    })
    .await?;
    wait_for(SETTLED, "the last one is led to", async || Ok(answers(client).await)).await
}

/// Reads a Node. On a machine with far too much to do an API server may miss its checks and lose its connections: whoever
/// asks again gets an answer from another one.
async fn read(nodes: &Api<Node>, name: &str) -> anyhow::Result<Node> {
    match nodes.get(name).await {
        Err(kube::Error::Api(status)) => Err(kube::Error::Api(status).into()),
        Err(error) => {
            eprintln!("{name} is read again: {error}");
            Ok(nodes.get(name).await?)
        }
        Ok(node) => Ok(node),
    }
}

/// The control plane that has the endpoint's address; there is just one, once they have settled it.
async fn holder(lab: &Lab) -> anyhow::Result<String> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let mut holders = Vec::new();
        for name in NODES {
            let look = lab.ssh(&name.parse()?).arg("ip -oneline address show").timeout(LOOK_LIMIT);
            // One that is switched off has nothing.
            if look.run().await.is_ok_and(|text| text.contains(&format!(" {ADDRESS}/32 "))) {
                holders.push(name);
            }
        }
        ensure!(holders.len() <= 1, "{holders:?} have the address");
        if let Some(holder) = holders.pop() {
            return Ok(holder.to_owned());
        }
        ensure!(Instant::now() < deadline, "nobody has the address");
    }
}

/// How long after `since` the last call through the endpoint failed; watches for longer than that may be.
async fn last_failure(client: &kube::Client, since: Instant) -> Duration {
    let (mut last, mut reason) = (Duration::ZERO, String::new());
    while since.elapsed() < LONGEST_GAP + Duration::from_secs(5) {
        if let Err(why) = call(client).await {
            (last, reason) = (since.elapsed(), why);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("the last call that failed: {reason}");
    last
}

/// Whether a call through the endpoint succeeds.
async fn answers(client: &kube::Client) -> bool {
    call(client).await.is_ok()
}

/// A call through the endpoint, or why it failed; one that hangs does.
async fn call(client: &kube::Client) -> Result<(), String> {
    match tokio::time::timeout(CALL_LIMIT, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", CALL_LIMIT.as_secs())),
    }
}

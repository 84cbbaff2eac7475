//! node-agent in a cluster: 1.36 to 1.37 by annotations, under kills, cuts and withdrawn permits, and nothing else on
//! the hosts changes. The test plays infrop's part.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use common::{
    annotations::{self, CHANGES_ALLOWED, PLAN_OBSERVED, READY, STATE},
    plan::Plan,
    state::State,
};
use futures::future::{try_join, try_join3};
use images::kubernetes::Bundle;
use infrop::provider::lab::Power;
use node_agent::apt::upstream;
use tests::{
    agent::{self, KILLER, KILLS, metadata},
    bundles,
    faults::{Faults, Party},
    fingerprint::{Fingerprint, Meant},
    harness::{Case, Tier, suite},
    infrop,
    kubeadm::Cluster,
    lab::{TestLab, wait_for},
};

fn main() -> ExitCode {
    suite([Case::new(
        Tier::T4,
        "a_cluster_goes_up_one_minor_by_annotations",
        Duration::from_mins(25),
        goes_up,
    )])
}

/// kubeadm on a busy machine, twice, with a boot between.
const CONTROL_PLANE_PATIENCE: Duration = Duration::from_mins(12);
const PATIENCE: Duration = Duration::from_mins(4);

/// The packages of the plan, the state of containerd and Kubernetes, and what the test itself writes. The authorities of
/// the cluster are not among it: kubeadm renews only what they signed.
const MEANT: Meant<'_> = Meant {
    packages: &["containerd", "kubeadm", "kubectl", "kubelet"],
    paths: &[
        "/etc/kubernetes/*.conf",
        "/etc/kubernetes/manifests",
        "/etc/kubernetes/pki/apiserver*",
        "/etc/kubernetes/pki/etcd/healthcheck-client.*",
        "/etc/kubernetes/pki/etcd/peer.*",
        "/etc/kubernetes/pki/etcd/server.*",
        "/etc/kubernetes/pki/front-proxy-client.*",
        "/etc/kubernetes/tmp",
        "/root/killer",
        "/var/lib/cni",
        "/var/lib/containerd",
        "/var/lib/etcd",
        "/var/lib/kubelet",
    ],
};

async fn goes_up() -> anyhow::Result<()> {
    TestLab::with("agents", &["cp1", "w1", "w2"], async |lab| {
        let [old, new] = bundles::pinned()?;
        let cluster = Cluster::init(lab, &old.manifest().kubernetes).await?;
        try_join(cluster.join("w1", false), cluster.join("w2", false)).await?;
        cluster.connect_pods().await?;
        cluster.wait_until_ready().await?;
        cluster.apply(&infrop()?.args(["manifests", "admission"]).run().await?).await?;
        let nodes = Nodes { lab, cluster: &cluster };

        // A control plane that loses its power gets by with the attempts that every host has. On w1 each kill in the middle of
        // a step is one; w2 is cut off for a minute only, and has to go on without the API server within that.
        for (host, config) in [("cp1", ""), ("w1", "attempts: 100\n"), ("w2", "apiPatienceSeconds: 5\n")] {
            let config = format!("{config}{}", agent::CONFIG);
            agent::install(lab, host, &config, &metadata(host, "{}", "{}")).await?;
        }
        let (from, to) = (plan(&old)?, plan(&new)?);
        for host in ["cp1", "w1", "w2"] {
            nodes.wait_until(host, PATIENCE, "first report", |node| node.ready() && node.has(&from)).await?;
        }
        let fingerprint = async |host: &str| Fingerprint::take(lab, host, MEANT).await;
        let (cp1, w1, w2) = try_join3(fingerprint("cp1"), fingerprint("w1"), fingerprint("w2")).await?;

        // A worker is never ahead of the control plane, permit or not.
        nodes.ask("w1", &to, true).await?;
        nodes.wait_for_reason("w1", PATIENCE, "SkewNewerThanApiServer").await?;
        // It begins by itself as soon as it may, and is killed from then on.
        lab.run("w1", KILLER).await?;
        nodes.upgrade_control_plane(&to).await?;
        cp1.check().await?;

        try_join(nodes.upgrade_with_kills(&to), nodes.upgrade_with_cuts(&to, &w2)).await?;
        try_join(w1.check(), w2.check()).await?;
        cluster.wait_until_ready().await?;

        // The way back is refused, and the rule is named.
        nodes.ask("w1", &from, true).await?;
        let refused = nodes.wait_for_reason("w1", PATIENCE, "SkewDowngrade").await?;
        ensure!(refused.state()?.message.contains("skew rule"), "{refused:?}");
        ensure!(refused.has(&to) && !refused.ready(), "{refused:?}");
        w1.check().await
    })
    .await
}

/// All software of a bundle.
fn plan(bundle: &Bundle) -> anyhow::Result<Plan> {
    let mut desired = BTreeMap::new();
    for package in &bundle.manifest().packages {
        desired.insert(package.name.parse()?, upstream(&package.version).parse()?);
    }
    Ok(Plan::new(desired))
}

/// The annotations of a Node.
#[derive(Debug)]
struct Annotations(BTreeMap<String, String>);

impl Annotations {
    fn ready(&self) -> bool {
        self.0.get(READY).is_some_and(|ready| ready == "true")
    }

    fn state(&self) -> anyhow::Result<State> {
        Ok(serde_json::from_str(self.0.get(STATE).context("no state")?)?)
    }

    /// Whether the current versions are those of a plan.
    fn has(&self, plan: &Plan) -> bool {
        plan.desired.iter().all(|(name, version)| {
            self.0.get(&annotations::current_version(name)).is_some_and(|current| current == version.as_str())
        })
    }

    fn is_done(&self, plan: &Plan) -> bool {
        let observed = self.0.get(PLAN_OBSERVED).is_some_and(|observed| observed == plan.id().as_str());
        self.ready() && observed && self.has(plan)
    }
}

/// The Nodes, seen and written as infrop would.
struct Nodes<'a> {
    lab: &'a TestLab,
    cluster: &'a Cluster<'a>,
}

impl Nodes<'_> {
    async fn read(&self, host: &str) -> anyhow::Result<Annotations> {
        let text =
            self.cluster.kubectl(&format!("get node {host} -o jsonpath={{.metadata.annotations}}")).await?;
        Ok(Annotations(serde_json::from_str(&text)?))
    }

    /// Plan and permit in one patch.
    async fn ask(&self, host: &str, plan: &Plan, permit: bool) -> anyhow::Result<()> {
        let mut keys = annotations::write_plan(plan);
        keys.insert(CHANGES_ALLOWED.to_owned(), permit.to_string());
        let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        self.cluster.insist(&format!("annotate node {host} --overwrite {}", pairs.join(" "))).await?;
        Ok(())
    }

    async fn permit(&self, host: &str, permit: bool) -> anyhow::Result<()> {
        self.cluster.insist(&format!("annotate node {host} --overwrite {CHANGES_ALLOWED}={permit}")).await?;
        Ok(())
    }

    async fn wait_until(
        &self,
        host: &str,
        limit: Duration,
        what: &str,
        condition: impl Fn(&Annotations) -> bool,
    ) -> anyhow::Result<Annotations> {
        let mut last = Annotations(BTreeMap::new());
        let waited = wait_for(limit, &format!("{host}: {what}"), async || {
            // The API server may be away; that is part of the test.
            let Ok(seen) = self.read(host).await else { return Ok(false) };
            last = seen;
            let quarantined = last.state().is_ok_and(|state| state.phase.as_str() == "Quarantined");
            ensure!(!quarantined, "{host} is quarantined");
            Ok(condition(&last))
        })
        .await;
        waited.with_context(|| format!("its last annotations were {:?}", last.0))?;
        Ok(last)
    }

    async fn wait_for_reason(
        &self,
        host: &str,
        limit: Duration,
        reason: &str,
    ) -> anyhow::Result<Annotations> {
        let is = |node: &Annotations| node.state().is_ok_and(|state| state.reason.as_str() == reason);
        self.wait_until(host, limit, reason, is).await
    }

    /// Waits until the journal on a host's disk tells of a step: sooner than the API server would.
    async fn wait_for_step(&self, host: &str, software: &str) -> anyhow::Result<()> {
        let text = format!("\"change\": \"{software}\"");
        wait_for(PATIENCE, &format!("{host} changes {software}"), async || {
            let journal = self.lab.read_disk(host, "var/lib/node-agent/journal.json").unwrap_or_default();
            Ok(journal.contains(&text))
        })
        .await
    }

    /// Waits until the kubelet itself reports a version; it does so some seconds after it is healthy.
    async fn wait_for_kubelet(&self, host: &str, version: &str) -> anyhow::Result<()> {
        let query = format!("get node {host} -o jsonpath={{.status.nodeInfo.kubeletVersion}}");
        wait_for(PATIENCE, &format!("{host}'s kubelet reports {version}"), async || {
            Ok(self.cluster.kubectl(&query).await.is_ok_and(|answer| answer == version))
        })
        .await
    }

    /// The only control plane: its API server goes away with it, and in the middle of kubeadm's work the power.
    async fn upgrade_control_plane(&self, plan: &Plan) -> anyhow::Result<()> {
        self.ask("cp1", plan, true).await?;
        // kubeadm has replaced etcd and is about to go on with the API server.
        let etcd = plan_etcd()?;
        let replaced = async || {
            let manifest =
                self.lab.read_disk("cp1", "etc/kubernetes/manifests/etcd.yaml").unwrap_or_default();
            Ok(manifest.contains(&etcd))
        };
        wait_for(PATIENCE, "kubeadm replaces etcd", replaced).await?;
        self.lab.power("cp1", Power::Cut).await?;
        self.lab.power("cp1", Power::On).await?;
        self.wait_until("cp1", CONTROL_PLANE_PATIENCE, "upgraded", |node| node.is_done(plan)).await?;
        let backups =
            self.lab.run("cp1", "ls /etc/kubernetes/tmp | sed 's/[-0-9]*$//' | sort | uniq -d").await?;
        ensure!(backups.trim().is_empty(), "several backups of {backups}");
        let journal = self.lab.run("cp1", "journalctl -u node-agent --no-pager -o cat").await?;
        ensure!(journal.contains("cut off"), "the power was cut between two steps:\n{journal}");
        Ok(())
    }

    /// A worker whose agent is killed after every step of its journal.
    async fn upgrade_with_kills(&self, plan: &Plan) -> anyhow::Result<()> {
        self.wait_until("w1", PATIENCE, "upgraded", |node| node.is_done(plan)).await?;
        let kills = self.lab.run("w1", &format!("cat {KILLS}")).await?;
        for step in ["containerd", "kubeadm", "kubernetes", "kubelet", "kubectl"] {
            ensure!(kills.contains(&format!("{step} after")), "it was not killed at {step}:\n{kills}");
        }
        self.check_worker("w1", plan).await
    }

    /// A worker whose permit is withdrawn half-way, and that later cannot reach the API server for a minute.
    async fn upgrade_with_cuts(&self, plan: &Plan, fingerprint: &Fingerprint<'_>) -> anyhow::Result<()> {
        self.ask("w2", plan, true).await?;
        self.wait_for_step("w2", "containerd").await?;
        self.permit("w2", false).await?;
        let stopped = self.wait_for_reason("w2", PATIENCE, "PermitWithdrawn").await?;
        ensure!(!stopped.ready() && !stopped.has(plan), "{stopped:?}");
        let before = self.lab.run("w2", "dpkg-query -W").await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        ensure!(
            self.lab.run("w2", "dpkg-query -W").await? == before,
            "it changed something without a permit"
        );
        fingerprint.check().await?;

        self.permit("w2", true).await?;
        self.wait_for_step("w2", "kubelet").await?;
        let faults = Faults::new(self.lab.lab()).await?;
        let (worker, server) = (Party::host("w2")?, Party::host("cp1")?);
        faults.cut(worker.clone(), server.clone()).await?;
        tokio::time::sleep(Duration::from_mins(1)).await;
        // It went on without the API server, and could tell nobody.
        ensure!(!self.read("w2").await?.ready());
        let journal = self.lab.run("w2", "node-agent status -o json").await?;
        let journal: serde_json::Value = serde_json::from_str(&journal)?;
        ensure!(journal.pointer("/journal/ready") == Some(&true.into()), "{journal}");
        faults.heal(&worker, &server).await?;
        self.wait_until("w2", PATIENCE, "upgraded", |node| node.is_done(plan)).await?;
        self.check_worker("w2", plan).await
    }

    async fn check_worker(&self, host: &str, plan: &Plan) -> anyhow::Result<()> {
        let version = |name: &str| plan.desired.get(&name.parse()?).context("no such software").cloned();
        let (kubelet, containerd) = (version("kubelet")?, version("containerd")?);
        self.wait_for_kubelet(host, &format!("v{kubelet}")).await?;
        let script = format!(
            "test -z \"$(dpkg --audit)\"\n\
             ctr version | grep -A1 '^Server' | grep 'v{containerd}'\n\
             for package in kubelet kubeadm kubectl containerd; do apt-mark showhold | grep -x $package; done"
        );
        self.lab.run(host, &script).await?;
        Ok(())
    }
}

/// The image of the newer bundle's etcd, as its manifest names it.
fn plan_etcd() -> anyhow::Result<String> {
    let [_, new] = bundles::pinned()?;
    let etcd = new.manifest().images.iter().find(|image| image.name.contains("/etcd:"));
    Ok(etcd.context("the bundle has etcd")?.name.clone())
}

//! The first end-to-end test: a cluster made, disturbed and upgraded by hand, on three lab hosts.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use common::KubernetesVersion;
use infrop::provider::lab::Power;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use tests::{
    bundles,
    harness::{Case, Tier, suite},
    kubeadm::Cluster,
    lab::{TestLab, wait_for},
};

fn main() -> ExitCode {
    suite([Case::new(Tier::T4, "by_hand_from_packages_to_the_next_minor", Duration::from_mins(25), by_hand)])
}

/// CoreDNS serves HTTP for its health check: a workload that answers, from an image the bundle has.
const WORKLOAD: &str = r"
apiVersion: v1
kind: ConfigMap
metadata: { name: web }
data:
  Corefile: |
    .:5353 {
      health :8080
      whoami
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      containers:
      - name: web
        image: IMAGE
        args: [-conf, /etc/web/Corefile]
        readinessProbe: { httpGet: { path: /health, port: 8080 }, periodSeconds: 1 }
        volumeMounts: [{ name: config, mountPath: /etc/web }]
      volumes: [{ name: config, configMap: { name: web } }]
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080 }]
";

async fn by_hand() -> anyhow::Result<()> {
    TestLab::with("first", &["cp1", "cp2", "w1"], async |lab| {
        let [old, new] = bundles::pinned()?;
        let (from, to) = (&old.manifest().kubernetes, &new.manifest().kubernetes);
        let mut clock = Clock::new();

        let cluster = Cluster::init(lab, from).await?;
        clock.lap("install and init the first control plane");
        images_have_kubeadms_names(lab, from).await?;
        cluster.join("cp2", true).await?;
        clock.lap("join the second control plane");
        cluster.join("w1", false).await?;
        cluster.connect_pods().await?;
        cluster.wait_until_ready().await?;
        clock.lap("join the worker, all ready");

        let coredns = old.manifest().images.iter().find(|image| image.name.contains("/coredns/"));
        let coredns = &coredns.context("the bundle has CoreDNS")?.name;
        cluster.apply(&WORKLOAD.replace("IMAGE", coredns)).await?;
        cluster.insist("rollout status deployment/web --timeout=60s").await?;
        service_answers(lab, &cluster).await?;
        reachable_from_this_computer(&cluster).await?;
        clock.lap("a service that answers");

        let reboot_worker = async {
            cluster.drain("w1").await?;
            lab.reboot("w1").await?;
            cluster.wait_for_return("w1").await?;
            cluster.uncordon("w1").await?;
            cluster.import_images("w1", to).await
        };
        // The images of the next version come ahead of use, while others wait.
        tokio::try_join!(cluster.import_images("cp1", to), cluster.import_images("cp2", to), reboot_worker)?;
        clock.lap("drain and reboot the worker, import the next version's images everywhere");

        let before = lab.boot_id("cp2").await?;
        lab.power("cp2", Power::Cut).await?;
        ensure!(lab.boot_id("cp2").await.is_err(), "a host without power answers");
        lab.power("cp2", Power::On).await?;
        ensure!(lab.boot_id("cp2").await? != before, "the power cut did not end the boot");
        cluster.wait_for_return("cp2").await?;
        cluster.wait_until_ready().await?;
        service_answers(lab, &cluster).await?;
        clock.lap("cut the power of a control plane");

        for host in ["cp1", "cp2", "w1"] {
            cluster.upgrade(host, to).await?;
            clock.lap(&format!("upgrade {host}"));
        }
        cluster.wait_until_ready().await?;
        versions_are(&cluster, &new).await?;
        service_answers(lab, &cluster).await?;
        clock.lap("all ready in the next version");
        Ok(())
    })
    .await
}

/// The bundle's images are known to containerd under the names that kubeadm gives them.
async fn images_have_kubeadms_names(lab: &TestLab, version: &KubernetesVersion) -> anyhow::Result<()> {
    let list = format!("kubeadm config images list --kubernetes-version {}", version.tag());
    let (wanted, known) =
        (lab.run("cp1", &list).await?, lab.run("cp1", "ctr -n k8s.io images list -q").await?);
    ensure!(wanted.lines().count() == 7, "{wanted}");
    for image in wanted.lines() {
        ensure!(known.lines().any(|name| name == image), "{image} is not among {known}");
    }
    Ok(())
}

/// The workload answers at its service address, from every host.
async fn service_answers(lab: &TestLab, cluster: &Cluster<'_>) -> anyhow::Result<()> {
    let address = cluster.insist("get service web -o jsonpath={.spec.clusterIP}").await?;
    for host in ["cp1", "cp2", "w1"] {
        let call = format!("curl --silent --fail --max-time 2 http://{address}/health");
        wait_for(Duration::from_mins(1), &format!("the service answers {host}"), async || {
            Ok(lab.run(host, &call).await.is_ok_and(|answer| answer == "OK"))
        })
        .await?;
    }
    Ok(())
}

/// The forwarded port on loopback leads to the API, whose certificate is checked.
async fn reachable_from_this_computer(cluster: &Cluster<'_>) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(cluster.client().await?).list(&ListParams::default()).await?;
    let mut names: Vec<String> = nodes.into_iter().filter_map(|node| node.metadata.name).collect();
    names.sort();
    ensure!(names == ["cp1", "cp2", "w1"], "{names:?}");
    Ok(())
}

async fn versions_are(cluster: &Cluster<'_>, bundle: &images::kubernetes::Bundle) -> anyhow::Result<()> {
    let manifest = bundle.manifest();
    let containerd = manifest.components.get("containerd").context("the bundle has containerd")?;
    let nodes = cluster
        .insist(
            "get nodes -o 'jsonpath={range .items[*]}{.status.nodeInfo.kubeletVersion} \
             {.status.nodeInfo.containerRuntimeVersion}{\"\\n\"}{end}'",
        )
        .await?;
    let expected = format!("{} containerd://{containerd}", manifest.kubernetes.tag());
    ensure!(nodes.lines().count() == 3 && nodes.lines().all(|line| line == expected), "{nodes}");
    let images =
        cluster.insist("-n kube-system get pods -o 'jsonpath={.items[*].spec.containers[*].image}'").await?;
    for image in &manifest.images {
        // The pause image is no container of a pod that kubectl shows.
        let shown = !image.name.contains("/pause:");
        ensure!(!shown || images.contains(&image.name), "{} does not run: {images}", image.name);
    }
    Ok(())
}

/// Says how long each part took.
struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self, what: &str) {
        eprintln!("{what}: {:.1} s", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}

//! Kubernetes by hand: the steps an administrator would take with apt-get and kubeadm on lab hosts.
//!
//! This is the ground truth the product is compared with, so nothing of the product is used but lab hosts
//! and the bundle.

use std::{
    fmt::Write as _,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use common::KubernetesVersion;
use futures::future::try_join_all;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::lab::{BUNDLES, TestLab, wait_for};

/// What kubeadm finds missing in hosts that share a kernel with this computer, and does not need there.
const IGNORED_CHECKS: &str =
    "SystemVerification,FileContent--proc-sys-net-bridge-bridge-nf-call-iptables,Swap";

const POD_SUBNET: &str = "10.244.0.0/16";

/// Prints the hash of the public key of the cluster's certificate, by which joining hosts know the cluster.
const CERTIFICATE_HASH: &str = "openssl x509 -pubkey -noout -in /etc/kubernetes/pki/ca.crt \
    | openssl pkey -pubin -outform der | sha256sum | cut -d' ' -f1";

/// An upgrade of a control plane takes kubeadm some three minutes.
const UPGRADE_LIMIT: Duration = Duration::from_mins(10);

/// A cluster that is made by hand.
#[derive(Debug)]
pub struct Cluster<'a> {
    lab: &'a TestLab,
    /// The first control plane, where kubectl runs.
    first: String,
}

impl<'a> Cluster<'a> {
    /// Installs a version's packages and images on all hosts and initializes the first one.
    pub async fn init(lab: &'a TestLab, version: &KubernetesVersion) -> anyhow::Result<Self> {
        let cluster = Self::prepare(lab, version, &[]).await?;
        cluster.initialize(version, None).await?;
        Ok(cluster)
    }

    /// Puts a version's packages and images on all hosts at the same time; on `workers` without the images of a control
    /// plane.
    pub async fn prepare(
        lab: &'a TestLab,
        version: &KubernetesVersion,
        workers: &[&str],
    ) -> anyhow::Result<Self> {
        let hosts: Vec<String> =
            lab.lab().definition()?.hosts.iter().map(|host| host.name.to_string()).collect();
        let first = hosts.first().context("a cluster needs a host")?.clone();
        let prepare = async |host: &String| {
            let images = if workers.contains(&host.as_str()) { OF_WORKERS } else { "*" };
            let script = [
                format!(
                    "mkdir -p /etc/containerd; cat > /etc/containerd/config.toml <<'EOF'\n{CONTAINERD_CONFIG}EOF"
                ),
                use_repository(version),
                install(version, "containerd kubelet kubeadm kubectl"),
                import_images(version, images),
            ];
            // As a whole before it starts, and with nothing to read: bash would go on with what programs leave of it.
            lab.run(host, &format!("{{\n{}\n}} < /dev/null", script.join("\n"))).await
        };
        try_join_all(hosts.iter().map(prepare)).await?;
        Ok(Self { lab, first })
    }

    /// Runs `kubeadm init` on the first host, with a token of one's own or one of kubeadm's; gives the hash of the
    /// cluster's certificate.
    pub async fn initialize(
        &self,
        version: &KubernetesVersion,
        token: Option<&str>,
    ) -> anyhow::Result<String> {
        let token = token.map(|token| format!("bootstrapTokens: [{{ token: '{token}' }}]\n"));
        let config = format!(
            "{}---\n{}---\n{}---\n{}",
            self.node_config("InitConfiguration", &self.first, &token.unwrap_or_default())?,
            self.cluster_config(version)?,
            KUBELET_CONFIG,
            PROXY_CONFIG
        );
        let script = format!(
            "cat > /root/kubeadm.yaml <<'EOF'\n{config}EOF\n\
             kubeadm init --config /root/kubeadm.yaml --skip-token-print \
             --ignore-preflight-errors={IGNORED_CHECKS} >&2\n{CERTIFICATE_HASH}"
        );
        Ok(self.lab.run(&self.first, &script).await?.trim().to_owned())
    }

    /// Joins a host, as another control plane or as a worker.
    pub async fn join(&self, host: &str, control_plane: bool) -> anyhow::Result<()> {
        let token = self.kubeadm("token create --ttl 10m").await?;
        let hash = self.lab.run(&self.first, CERTIFICATE_HASH).await?;
        let mut extra = String::new();
        if control_plane {
            let key = self.kubeadm("init phase upload-certs --upload-certs").await?;
            let address = self.address(host)?;
            let _ = write!(
                extra,
                "controlPlane:\n  certificateKey: {key}\n  localAPIEndpoint: {{ advertiseAddress: {address} }}\n"
            );
        }
        self.join_with(host, &token, hash.trim(), &extra).await
    }

    /// Joins a worker, with a token and the hash of the cluster's certificate that are known already.
    pub async fn join_worker(&self, host: &str, token: &str, hash: &str) -> anyhow::Result<()> {
        self.join_with(host, token, hash, "").await
    }

    async fn join_with(&self, host: &str, token: &str, hash: &str, extra: &str) -> anyhow::Result<()> {
        let discovery = format!(
            "discovery:\n  bootstrapToken:\n    token: '{token}'\n    apiServerEndpoint: {}\n    \
             caCertHashes: [sha256:{hash}]\n{extra}",
            self.endpoint()?,
        );
        let config = self.node_config("JoinConfiguration", host, &discovery)?;
        let script = format!(
            "umask 077; cat > /root/kubeadm.yaml <<'EOF'\n{config}EOF\n\
             kubeadm join --config /root/kubeadm.yaml --ignore-preflight-errors={IGNORED_CHECKS}"
        );
        self.lab.run(host, &script).await?;
        Ok(())
    }

    /// Gives every node its pod network: a bridge on each host, and routes between hosts.
    pub async fn connect_pods(&self) -> anyhow::Result<()> {
        let hosts = &self.lab.lab().definition()?.hosts;
        let mut subnets = Vec::new();
        for host in hosts {
            let query = format!("get node {} -o jsonpath={{.spec.podCIDR}}", host.name);
            let subnet = async || {
                let subnet = self.kubectl(&query).await?;
                ensure!(!subnet.is_empty(), "{} has no pod network", host.name);
                Ok(subnet)
            };
            subnets.push(persist("a pod network", subnet).await?);
        }
        for (host, subnet) in hosts.iter().zip(&subnets) {
            let routes: String = hosts
                .iter()
                .zip(&subnets)
                .filter(|(other, _)| other.name != host.name)
                .map(|(other, subnet)| format!("[Route]\nDestination={subnet}\nGateway={}\n", other.address))
                .collect();
            let script = format!(
                "mkdir -p /etc/cni/net.d /etc/systemd/network/10-lab.network.d\n\
                 cat > /etc/systemd/network/10-lab.network.d/pods.conf <<'EOF'\n{routes}EOF\n\
                 networkctl reload; networkctl reconfigure host0\n\
                 cat > /etc/cni/net.d/10-bridge.conflist <<'EOF'\n{}\nEOF\n",
                network_config(subnet)
            );
            self.lab.run(host.name.as_str(), &script).await?;
        }
        Ok(())
    }

    /// Runs kubectl as the cluster's administrator.
    pub async fn kubectl(&self, arguments: &str) -> anyhow::Result<String> {
        self.kubectl_with(arguments, "").await
    }

    /// Creates what a manifest describes.
    pub async fn apply(&self, manifest: &str) -> anyhow::Result<()> {
        self.kubectl_with("apply -f -", manifest).await?;
        Ok(())
    }

    async fn kubectl_with(&self, arguments: &str, stdin: &str) -> anyhow::Result<String> {
        let script =
            format!("kubectl --kubeconfig /etc/kubernetes/admin.conf {arguments} <<'EOF'\n{stdin}\nEOF\n");
        self.lab.run(&self.first, &script).await
    }

    /// Waits until all nodes, CoreDNS and kube-proxy are ready.
    pub async fn wait_until_ready(&self) -> anyhow::Result<()> {
        self.insist("wait --for=condition=Ready node --all --timeout=30s").await?;
        for workload in ["daemonset/kube-proxy", "deployment/coredns"] {
            self.insist(&format!("-n kube-system rollout status {workload} --timeout=30s")).await?;
        }
        Ok(())
    }

    /// Runs kubectl until it succeeds.
    pub async fn insist(&self, arguments: &str) -> anyhow::Result<String> {
        persist(&format!("kubectl {arguments}"), async || self.kubectl(arguments).await).await
    }

    /// Runs kubeadm on the first control plane until it succeeds.
    async fn kubeadm(&self, arguments: &str) -> anyhow::Result<String> {
        let script = format!("kubeadm {arguments} 2>/dev/null | tail -n 1");
        let answer = persist(&script, async || self.lab.run(&self.first, &script).await).await?;
        Ok(answer.trim().to_owned())
    }

    /// Waits until a node that was away reports in again, in its present boot, and is Ready.
    pub async fn wait_for_return(&self, host: &str) -> anyhow::Result<()> {
        let boot = self.lab.boot_id(host).await?;
        let query = format!(
            "get node {host} -o 'jsonpath={{.status.nodeInfo.bootID}} {{.status.conditions[?(@.type==\"Ready\")].status}}'"
        );
        wait_for(Duration::from_mins(3), &format!("{host} Ready after its boot"), async || {
            Ok(self.kubectl(&query).await.is_ok_and(|answer| answer == format!("{boot} True")))
        })
        .await
    }

    /// A client that comes in through the port on this computer's loopback.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        // Only the first call of the process installs it; that one is ours or equal to ours.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let text = self.lab.run(&self.first, "cat /etc/kubernetes/admin.conf").await?;
        let mut kubeconfig: Kubeconfig = serde_yaml::from_str(&text)?;
        let port = self.lab.lab().status().await?.api_port;
        for cluster in &mut kubeconfig.clusters {
            if let Some(cluster) = &mut cluster.cluster {
                cluster.server = Some(format!("https://127.0.0.1:{port}"));
            }
        }
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Evicts all pods of a node that can be.
    pub async fn drain(&self, host: &str) -> anyhow::Result<()> {
        self.insist(&format!("drain {host} --ignore-daemonsets --delete-emptydir-data --timeout=60s"))
            .await?;
        Ok(())
    }

    /// Lets pods come to a node again.
    pub async fn uncordon(&self, host: &str) -> anyhow::Result<()> {
        self.insist(&format!("uncordon {host}")).await?;
        Ok(())
    }

    /// Upgrades one host in the documented order: kubeadm, the cluster's part, then drained kubelet and
    /// containerd.
    ///
    /// Gives how long the drain took.
    pub async fn upgrade(&self, host: &str, version: &KubernetesVersion) -> anyhow::Result<Duration> {
        let script = format!("{}\n{}", use_repository(version), install(version, "kubeadm"));
        self.lab.run(host, &script).await?;
        let command =
            if host == self.first { format!("apply {} --yes", version.tag()) } else { "node".to_owned() };
        let script = format!("kubeadm upgrade {command} --ignore-preflight-errors={IGNORED_CHECKS}");
        self.lab.run_for(host, UPGRADE_LIMIT, &script).await?;
        let started = Instant::now();
        self.drain(host).await?;
        let drain = started.elapsed();
        self.lab.run(host, &install(version, "containerd kubelet kubectl")).await?;
        self.lab.run(host, "systemctl restart containerd kubelet").await?;
        let query = format!("get node {host} -o jsonpath={{.status.nodeInfo.kubeletVersion}}");
        wait_for(Duration::from_mins(3), &format!("{host} reports {}", version.tag()), async || {
            Ok(self.kubectl(&query).await.is_ok_and(|answer| answer == version.tag()))
        })
        .await?;
        self.insist(&format!("wait --for=condition=Ready node/{host} --timeout=30s")).await?;
        self.uncordon(host).await?;
        Ok(drain)
    }

    /// Takes the container images of a version from its bundle.
    pub async fn import_images(&self, host: &str, version: &KubernetesVersion) -> anyhow::Result<()> {
        self.lab.run(host, &import_images(version, "*")).await?;
        Ok(())
    }

    fn address(&self, host: &str) -> anyhow::Result<Ipv4Addr> {
        Ok(self.lab.lab().definition()?.host(&host.parse()?)?.address)
    }

    fn endpoint(&self) -> anyhow::Result<String> {
        Ok(format!("{}:6443", self.address(&self.first)?))
    }

    fn node_config(&self, kind: &str, host: &str, extra: &str) -> anyhow::Result<String> {
        let address = self.address(host)?;
        let local = match kind {
            "InitConfiguration" => format!("localAPIEndpoint: {{ advertiseAddress: {address} }}\n"),
            _ => String::new(),
        };
        Ok(format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: {kind}\n{local}nodeRegistration:\n  name: {host}\n  \
             criSocket: unix:///run/containerd/containerd.sock\n  kubeletExtraArgs:\n  \
             - {{ name: node-ip, value: {address} }}\n{extra}"
        ))
    }

    fn cluster_config(&self, version: &KubernetesVersion) -> anyhow::Result<String> {
        Ok(format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {}\n\
             controlPlaneEndpoint: {}\nnetworking: {{ podSubnet: {POD_SUBNET} }}\n\
             apiServer: {{ certSANs: [127.0.0.1] }}\n",
            version.tag(),
            self.endpoint()?
        ))
    }
}

/// The images a worker has a use for.
const OF_WORKERS: &str = "{coredns,kube-proxy,pause}";

/// A script that imports images of a version's bundle: those that a pattern names.
pub fn import_images(version: &KubernetesVersion, which: &str) -> String {
    format!(
        "for image in {BUNDLES}/{version}/images/{which}.tar; do ctr -n k8s.io images import --local $image; done"
    )
}

/// A script that makes a version's bundle the source of packages.
fn use_repository(version: &KubernetesVersion) -> String {
    let apt = format!("{BUNDLES}/{version}/apt");
    format!(
        "cat > /etc/apt/sources.list.d/kubernetes.sources <<'EOF'\nTypes: deb\nURIs: file:{apt}\nSuites: ./\n\
         Signed-By: {apt}/repository.asc\nEOF\napt-get --error-on=any update"
    )
}

/// A script that installs packages in exactly the version of the repository, which has only one. What they only
/// recommend is on hosts already, or nobody wants it.
fn install(version: &KubernetesVersion, packages: &str) -> String {
    let pinned: Vec<String> = packages
        .split(' ')
        .map(|name| if name == "containerd" { name.to_owned() } else { format!("{name}={version}-1.1") })
        .collect();
    format!(
        "DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
         --allow-change-held-packages {}\napt-mark hold {packages}",
        pinned.join(" ")
    )
}

/// Tries until it succeeds: a control plane that restarts or grows does not answer for a while.
async fn persist(
    what: &str,
    mut attempt: impl AsyncFnMut() -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut last = Ok(String::new());
    let succeeded = wait_for(Duration::from_mins(4), what, async || {
        last = attempt().await;
        Ok(last.is_ok())
    })
    .await;
    match succeeded {
        Ok(()) => last,
        Err(error) => last.context(error),
    }
}

/// What the kernel of this computer asks for: no systemd above the hosts, perhaps cgroup v1, swap unknown.
const KUBELET_CONFIG: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
";

/// It may not write `nf_conntrack_max`, which is the computer's.
const PROXY_CONFIG: &str = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: { maxPerCore: 0, min: 0 }
";

/// Without `CAP_SYS_RESOURCE` an OOM score cannot be lowered; images come from the bundle, pause among them. Hosts share
/// this computer, so shims are not asked for figures every second.
pub const CONTAINERD_CONFIG: &str = "\
version = 3
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  stats_collect_period = '30s'
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
    conf_dir = '/etc/cni/net.d'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'registry.k8s.io/pause:3.10.2'
";

fn network_config(subnet: &str) -> String {
    format!(
        r#"{{ "cniVersion": "0.4.0", "name": "pods", "plugins": [
  {{ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "ipam": {{ "type": "host-local", "ranges": [[{{ "subnet": "{subnet}" }}]], "routes": [{{ "dst": "0.0.0.0/0" }}] }} }},
  {{ "type": "portmap", "capabilities": {{ "portMappings": true }} }} ] }}"#
    )
}

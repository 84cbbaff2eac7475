//! A real kube-apiserver with its etcd, on a loopback address of its own.
//!
//! TLS, RBAC, the Node authorizer, `NodeRestriction` and `ValidatingAdmissionPolicy` are on, and there is an
//! audit log. No controllers run: what a test does not create is not there.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use anyhow::bail;
use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    audit::{self, AuditLog},
    bundles,
    keeper::Keeper,
    lab::wait_for,
    pki::{Authority, Identity, write_private},
};

const API_PORT: u16 = 6443;
const ETCD_CLIENT_PORT: u16 = 2379;
const ETCD_PEER_PORT: u16 = 2380;

/// Whoever listens here owns the address: tests of all processes find out without talking to each other.
const RESERVATION_PORT: u16 = 6400;

/// It takes three seconds on an idle machine.
const START_LIMIT: Duration = Duration::from_mins(2);

/// The kernel needs milliseconds for a process that is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// A running API server. It ends, and all its files go, when this is dropped or this process ends.
pub struct ApiServer {
    address: Ipv4Addr,
    authority: Authority,
    audit: AuditLog,
    kube_apiserver: PathBuf,
    processes: [u32; 2],
    // Dropped in this order: the servers end before the address is given back.
    keeper: Keeper,
    _reservation: TcpListener,
}

impl ApiServer {
    /// Starts a server and waits until it is ready.
    pub async fn start() -> anyhow::Result<Self> {
        // Only the first call of the process installs it; that one is ours or equal to ours.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (etcd, kube_apiserver) =
            (bundles::program("etcd").await?, bundles::program("kube-apiserver").await?);
        let (address, reservation) = reserve_address()?;
        let authority = Authority::new()?;
        let mut keeper = Keeper::start("infrop-api-")?;
        let directory = keeper.directory().to_owned();
        let audit = AuditLog::new(directory.join("audit.log"));
        write_files(&directory, &authority, address)?;
        let processes = [
            keeper.run(&directory.join("etcd.log"), &etcd, &etcd_arguments(&directory, address))?,
            run_api_server(&mut keeper, &kube_apiserver, address)?,
        ];
        let server =
            Self { address, authority, audit, kube_apiserver, processes, keeper, _reservation: reservation };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Restarts kube-apiserver with the same etcd and waits until it is ready. As a kubelet does, it asks first, and
    /// ends what has not ended after `grace`: an open watch keeps a server for a minute.
    pub async fn restart(&mut self, grace: Duration) -> anyhow::Result<()> {
        let [etcd, old] = self.processes;
        let process = Pid::from_raw(i32::try_from(old)?);
        let ended = async || Ok(!is_running(old));
        if !grace.is_zero() {
            kill(process, Signal::SIGTERM)?;
        }
        if wait_for(grace, "kube-apiserver ends by itself", ended).await.is_err() {
            kill(process, Signal::SIGKILL)?;
            wait_for(STOP_LIMIT, "kube-apiserver ends", ended).await?;
        }
        self.processes = [etcd, run_api_server(&mut self.keeper, &self.kube_apiserver, self.address)?];
        self.wait_until_ready().await
    }

    /// Where its files are while it runs.
    pub fn directory(&self) -> &Path {
        self.keeper.directory()
    }

    /// The process numbers of etcd and kube-apiserver.
    pub fn processes(&self) -> [u32; 2] {
        self.processes
    }

    /// What it was asked so far.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// A client that may do everything.
    pub async fn admin(&self) -> anyhow::Result<Client> {
        self.client("admin", &["system:masters"]).await
    }

    /// A client with the identity of a node's kubelet.
    pub async fn node(&self, name: &str) -> anyhow::Result<Client> {
        self.client(&format!("system:node:{name}"), &["system:nodes"]).await
    }

    /// A client with the identity of a user.
    pub async fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(self.kubeconfig(user, groups)?, &options).await?;
        Ok(Client::try_from(config)?)
    }

    /// The kubeconfig of a user.
    pub fn kubeconfig(&self, user: &str, groups: &[&str]) -> anyhow::Result<Kubeconfig> {
        let Identity { certificate, key } = self.authority.client(user, groups)?;
        let text = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user } }],
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://{}:{API_PORT}", self.address),
                "certificate-authority-data": BASE64_STANDARD.encode(self.authority.certificate()),
            } }],
            "users": [{ "name": user, "user": {
                "client-certificate-data": BASE64_STANDARD.encode(certificate),
                "client-key-data": BASE64_STANDARD.encode(key),
            } }],
        });
        Ok(serde_json::from_value(text)?)
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let client = self.admin().await?;
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let Err(error) = client.request_text(request).await else { return Ok(()) };
            for process in self.processes {
                let gone = !is_running(process);
                if gone || tokio::time::Instant::now() > deadline {
                    let tail = |name: &str| last_lines(&self.directory().join(name));
                    bail!(
                        "the API server does not start ({error})\n--- etcd\n{}\n--- kube-apiserver\n{}",
                        tail("etcd.log"),
                        tail("kube-apiserver.log")
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("address", &self.address).finish_non_exhaustive()
    }
}

fn run_api_server(keeper: &mut Keeper, program: &Path, address: Ipv4Addr) -> anyhow::Result<u32> {
    let directory = keeper.directory().to_owned();
    let arguments = api_server_arguments(&directory, address);
    keeper.run(&directory.join("kube-apiserver.log"), program, &arguments)
}

/// Takes a loopback address that no other test has: the whole of 127.0.0.0/8 is this computer.
fn reserve_address() -> anyhow::Result<(Ipv4Addr, TcpListener)> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes start in different places, so that they rarely meet.
    let start = u16::try_from(std::process::id() % 60_000)?;
    for _ in 0..1000 {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let [high, low] = number.to_be_bytes();
        // 127.99: well away from the addresses people use.
        let address = Ipv4Addr::new(127, 99, high, low.clamp(1, 254));
        if let Ok(listener) = TcpListener::bind((address, RESERVATION_PORT)) {
            return Ok((address, listener));
        }
    }
    bail!("there is no free loopback address")
}

fn write_files(directory: &Path, authority: &Authority, address: Ipv4Addr) -> anyhow::Result<()> {
    let server = authority.server(&address.to_string())?;
    let service_accounts = authority.client("service accounts", &[])?;
    for (name, text) in [
        ("ca.crt", authority.certificate()),
        ("server.crt", &server.certificate),
        ("server.key", &server.key),
        ("service-accounts.crt", &service_accounts.certificate),
        ("service-accounts.key", &service_accounts.key),
        ("audit-policy.yaml", audit::POLICY),
    ] {
        write_private(&directory.join(name), text)?;
    }
    Ok(())
}

fn etcd_arguments(directory: &Path, address: Ipv4Addr) -> Vec<String> {
    let client = format!("http://{address}:{ETCD_CLIENT_PORT}");
    let peer = format!("http://{address}:{ETCD_PEER_PORT}");
    vec![
        format!("--data-dir={}", directory.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // Nothing is kept, so nothing needs to survive a power cut.
        "--unsafe-no-fsync".to_owned(),
    ]
}

fn api_server_arguments(directory: &Path, address: Ipv4Addr) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    vec![
        format!("--bind-address={address}"),
        format!("--secure-port={API_PORT}"),
        // It would refuse to publish a loopback address as its endpoint.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--etcd-servers=http://{address}:{ETCD_CLIENT_PORT}"),
        format!("--cert-dir={}", directory.display()),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        // Pods of tests have no service account: nobody would make one.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("service-accounts.crt")),
        format!("--service-account-signing-key-file={}", file("service-accounts.key")),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        format!("--audit-policy-file={}", file("audit-policy.yaml")),
        format!("--audit-log-path={}", file("audit.log")),
        // In MiB: what is asked later must not begin another file.
        "--audit-log-maxsize=10000".to_owned(),
    ]
}

/// Whether a process lives; one that ended and was not collected yet does not.
pub fn is_running(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    // All of them: the first may be gone while others still have its files and ports.
    let mut states = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    states.any(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(15).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

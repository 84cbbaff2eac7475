//! kubeadm on hosts: its configuration, and runs of it that outlive a broken connection and a killed infrop.

mod config;

use std::time::Duration;

pub use self::config::{
    API_PORT, ClusterConfiguration, InitConfiguration, JoinConfiguration, LocalEndpoint, Networking,
    NodeRegistration, TOKEN_DESCRIPTION, TokenDiscovery, component,
};
use super::{error::Error, host::KubeadmState, ssh::Remote};

/// The unit that kubeadm runs in: systemd keeps it whatever happens to infrop or the connection.
pub(super) const UNIT: &str = "infrop-kubeadm.service";

/// Written before kubeadm starts: what stands on the host from then on is infrop's doing.
pub(super) const BEGUN: &str = "/var/lib/infrop/kubeadm/begun";

/// Written after kubeadm succeeded. A host with it is never initialized or reset by `apply`.
pub(super) const DONE: &str = "/var/lib/infrop/kubeadm/done";

/// In memory, for it holds a token.
const CONFIG: &str = "/run/infrop/kubeadm.yaml";

/// To write a file and start a unit.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long one question waits for the unit's end; then the next is asked.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Stops containers and removes what kubeadm made.
const RESET_LIMIT: Duration = Duration::from_mins(5);

/// What kubeadm is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Make a cluster.
    Init,
    /// Join one.
    Join,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Join => "join",
        }
    }

    /// How it is called. A token on the console would stand in the journal.
    fn options(self) -> &'static str {
        match self {
            Self::Init => " --skip-token-print",
            Self::Join => "",
        }
    }
}

/// Documents as one YAML text.
pub fn documents(parts: impl IntoIterator<Item = serde_json::Value>) -> Result<String, serde_yaml::Error> {
    let texts: Result<Vec<String>, _> = parts.into_iter().map(|part| serde_yaml::to_string(&part)).collect();
    Ok(texts?.join("---\n"))
}

/// Starts kubeadm. Its configuration is gone from the host when it ends.
pub async fn start(remote: &Remote, verb: Verb, config: &str) -> Result<(), Error> {
    let (verb, options) = (verb.as_str(), verb.options());
    // The mark comes first and is on the disk: from then on a crash is recognised as one.
    let script = format!(
        "umask 077\nmkdir -p \"$(dirname {BEGUN})\" \"$(dirname {CONFIG})\"\ncat > {CONFIG}\n\
         rm -f {DONE}\necho {verb} > {BEGUN}\nsync {BEGUN} \"$(dirname {BEGUN})\"\n\
         systemctl stop {UNIT} 2>/dev/null || true\nsystemctl reset-failed {UNIT} 2>/dev/null || true\n\
         systemd-run --quiet --unit={UNIT} --description='kubeadm {verb}, started by infrop' \
         --property=Type=exec --property=RemainAfterExit=yes --property='ExecStopPost=-/bin/rm -f {CONFIG}' \
         --setenv=HOME=/root -- /bin/bash -euc \
         'kubeadm {verb} --config {CONFIG}{options}; rm -f {CONFIG}; echo {verb} > {DONE}.new; sync {DONE}.new; \
         mv {DONE}.new {DONE}; sync \"$(dirname {DONE})\"'"
    );
    remote.run_with(&format!("start kubeadm {verb}"), START_LIMIT, &script, config.as_bytes()).await?;
    Ok(())
}

/// Waits a while for kubeadm's end; true if it ended.
pub async fn wait(remote: &Remote) -> Result<bool, Error> {
    // systemd is not asked while kubeadm lives: many hosts that ask all the time take the time of those that work.
    let script = format!(
        "process=$(systemctl show {UNIT} --property=MainPID --value)\n\
         if test \"$process\" != 0; then\n  \
         timeout 15 tail --pid=\"$process\" --sleep-interval=0.2 --follow /dev/null || exit 0\nfi\n\
         for _ in {{1..20}}; do\n  state=$(systemctl show {UNIT} --property=SubState --value)\n  \
         if test \"$state\" != running; then echo ended; exit 0; fi\n  sleep 0.1\ndone"
    );
    Ok(remote.run("wait for kubeadm", WAIT_LIMIT, &script).await?.trim() == "ended")
}

/// Removes what kubeadm made, of a run that did not end well or of a node that is no more.
pub async fn reset(remote: &Remote, state: &KubeadmState) -> Result<(), Error> {
    tracing::info!(host = %remote.host(), ?state, "kubeadm reset");
    let script = format!(
        "systemctl stop {UNIT} 2>/dev/null || true\nsystemctl reset-failed {UNIT} 2>/dev/null || true\n\
         kubeadm reset --force --cri-socket unix:///run/containerd/containerd.sock >&2\n\
         rm -rf /etc/kubernetes/kubelet.conf /var/lib/etcd/member {CONFIG}\nrm -f {BEGUN} {DONE}\nsync /var/lib/infrop"
    );
    remote.run("reset what kubeadm made", RESET_LIMIT, &script).await?;
    Ok(())
}

/// Lays the cluster's certificates down for another control plane, encrypted with a key that is in the configuration.
pub async fn upload_certificates(remote: &Remote, config: &str) -> Result<(), Error> {
    let script = format!(
        "umask 077\nmkdir -p \"$(dirname {CONFIG})\"\ntrap 'rm -f {CONFIG}.certs' EXIT\ncat > {CONFIG}.certs\n\
         kubeadm init phase upload-certs --upload-certs --config {CONFIG}.certs > /dev/null"
    );
    remote
        .run_with(
            "lay down certificates for other control planes",
            Duration::from_mins(2),
            &script,
            config.as_bytes(),
        )
        .await?;
    Ok(())
}

/// The administrator's kubeconfig of a control plane.
pub async fn admin_kubeconfig(remote: &Remote) -> Result<String, Error> {
    remote.run("show admin.conf", START_LIMIT, "cat /etc/kubernetes/admin.conf").await
}

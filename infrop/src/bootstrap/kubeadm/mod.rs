//! kubeadm on hosts: its configuration, and runs of it that outlive a broken connection and a killed infrop.

mod config;
#[cfg(test)]
mod tests;

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

/// Written after kubeadm succeeded. A host with it is never initialized by `apply`, and reset only to remove it.
pub(super) const DONE: &str = "/var/lib/infrop/kubeadm/done";

/// Held while the marks are looked at and changed: the script of a broken connection may still be at work.
const LOCK: &str = "/var/lib/infrop/kubeadm/lock";

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

/// Documents as one text. In JSON, which is YAML with quotes around all that is a text: kubeadm, whose YAML is an older one,
/// takes a host called `off` or `no` for a boolean.
pub fn documents(parts: impl IntoIterator<Item = serde_json::Value>) -> String {
    let texts: Vec<String> = parts.into_iter().map(|part| format!("{part}\n")).collect();
    texts.join("---\n")
}

/// Takes the lock. Whoever starts a kubeadm while another is reset gives up when its own time is over.
fn lock() -> String {
    format!("mkdir -p \"$(dirname {LOCK})\"\nexec 9> {LOCK}\nflock 9\n")
}

/// Starts kubeadm, unless it was begun there already: whoever asks may not know how the last one ended. What became of
/// that one is then seen by a look at the host. The configuration is gone from the host when kubeadm ends.
pub async fn start(remote: &Remote, verb: Verb, config: &str) -> Result<(), Error> {
    let what = format!("start kubeadm {}", verb.as_str());
    remote.run_with(&what, START_LIMIT, &start_script(verb), config.as_bytes()).await?;
    Ok(())
}

fn start_script(verb: Verb) -> String {
    let (verb, options, lock) = (verb.as_str(), verb.options(), lock());
    // The mark comes first and is on the disk: from then on a crash is recognised as one, and only a reset removes it.
    format!(
        "umask 077\n{lock}\
         if test -e {DONE} -o -e {BEGUN}; then exit 0; fi\n\
         case $(systemctl show {UNIT} --property=ActiveState --property=SubState --value | tr '\\n' ' ') in\n  \
         'active running '*|activating*|deactivating*) exit 0 ;;\nesac\n\
         mkdir -p \"$(dirname {CONFIG})\"\ncat > {CONFIG}\n\
         echo {verb} > {BEGUN}\nsync {BEGUN} \"$(dirname {BEGUN})\"\n\
         systemctl stop {UNIT} 2>/dev/null || true\nsystemctl reset-failed {UNIT} 2>/dev/null || true\n\
         systemd-run --quiet --unit={UNIT} --description='kubeadm {verb}, started by infrop' \
         --property=Type=exec --property=RemainAfterExit=yes --property='ExecStopPost=-/bin/rm -f {CONFIG}' \
         --setenv=HOME=/root -- /bin/bash -euc \
         'kubeadm {verb} --config {CONFIG}{options}; rm -f {CONFIG}; echo {verb} > {DONE}.new; sync {DONE}.new; \
         mv {DONE}.new {DONE}; sync \"$(dirname {DONE})\"'"
    )
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

/// Removes what kubeadm made, of a run that did not end well or of a node that is no more. `state` is what was last
/// seen: one that had failed then, and has not now, is left alone.
pub async fn reset(remote: &Remote, state: &KubeadmState) -> Result<(), Error> {
    tracing::info!(host = %remote.host(), ?state, "kubeadm reset");
    remote.run("reset what kubeadm made", RESET_LIMIT, &reset_script(state)).await?;
    Ok(())
}

fn reset_script(state: &KubeadmState) -> String {
    let guard = match state {
        KubeadmState::Done | KubeadmState::Running => String::new(),
        KubeadmState::None | KubeadmState::Failed(_) => format!(
            "if test -e {DONE}; then echo 'kubeadm has ended well since it was looked at' >&2; exit 1; fi\n\
             if test \"$(systemctl show {UNIT} --property=SubState --value)\" = running; then\n  \
             echo 'kubeadm runs since it was looked at' >&2; exit 1\nfi\n"
        ),
    };
    let lock = lock();
    format!(
        "{lock}{guard}systemctl stop {UNIT} 2>/dev/null || true\nsystemctl reset-failed {UNIT} 2>/dev/null || true\n\
         kubeadm reset --force --cri-socket unix:///run/containerd/containerd.sock >&2\n\
         rm -rf /etc/kubernetes/kubelet.conf /var/lib/etcd/member {CONFIG}\nrm -f {BEGUN} {DONE}\nsync /var/lib/infrop"
    )
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

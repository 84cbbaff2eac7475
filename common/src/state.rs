//! What node-agent says about itself: the annotation `alpha.node.caos.ch/state`.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a node-agent does, why, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// What it does.
    pub phase: Phase,
    /// Why, as a code: docs/usage/reasons.md has an entry for each.
    pub reason: Reason,
    /// Why, as a sentence.
    pub message: String,
    /// Since when phase and reason are these.
    pub since: Timestamp,
    /// How often the plan was started; 0 if there is none.
    pub attempt: u32,
    /// The boot the host is in.
    pub boot_id: String,
    /// The version of node-agent.
    pub agent_version: String,
}

impl State {
    /// Of an agent that begins and has not looked around yet.
    pub fn starting(agent_version: &str, now: Timestamp) -> Self {
        Self {
            phase: Phase::Waiting,
            reason: Reason::NoPlan,
            message: "starting".to_owned(),
            since: now,
            attempt: 0,
            boot_id: String::new(),
            agent_version: agent_version.to_owned(),
        }
    }
}

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The code, stable across releases.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

codes! {
    /// What a node-agent does.
    Phase {
        /// The host is as it should be.
        Idle,
        /// Something differs, and it may not change it yet.
        Waiting,
        /// What is asked for cannot be done; nothing was tried.
        Refused,
        /// It changes software.
        Changing,
        /// The host is about to restart.
        Rebooting,
        /// It looks whether all of it works.
        Verifying,
        /// An attempt failed; it waits before the next.
        Retrying,
        /// The plan failed too often. Only another plan or a person starts it again.
        Quarantined,
    }
}

codes! {
    /// Why a node-agent is in its phase.
    Reason {
        /// Nobody asked for anything.
        NoPlan,
        /// All versions are the desired ones.
        UpToDate,
        /// The plan differs from the host, and there is no permit.
        NoPermit,
        /// The permit went away before the plan was done.
        PermitWithdrawn,
        /// A person paused the node.
        Paused,
        /// Annotations cannot be read.
        InvalidAnnotation,
        /// The plan's hash is not that of the desired versions.
        PlanMismatch,
        /// The plan names software that this agent does not know.
        UnknownSoftware,
        /// The plan names a content that was not delivered to the host.
        ContentMissing,
        /// Kubernetes versions never go back.
        SkewDowngrade,
        /// Kubernetes goes one minor version at a time.
        SkewMinorSkipped,
        /// A kubelet may not be newer than the API servers.
        SkewNewerThanApiServer,
        /// kubelet, kubeadm and kubectl of a plan must be one version.
        SkewMixedVersions,
        /// The API server does not answer, and the agent waits a while for it.
        ApiUnreachable,
        /// The API server has no Node of this host's name.
        NodeMissing,
        /// The API server does not let the agent write on its Node.
        ApiRefused,
        /// Software is being changed.
        ChangingSoftware,
        /// The plan needs a restart of the host.
        RebootDue,
        /// Someone keeps the host from restarting.
        RebootInhibited,
        /// Services are being checked.
        CheckingServices,
        /// No repository has the package in this version.
        PackageNotFound,
        /// A package could not be installed.
        PackageFailed,
        /// Another program holds dpkg's lock.
        PackageLockHeld,
        /// A repository's signature is missing or wrong.
        RepositoryUntrusted,
        /// A repository cannot be reached.
        RepositoryUnreachable,
        /// There is no space left.
        DiskFull,
        /// A file or setting could not be written.
        ConfigurationFailed,
        /// A container image could not be imported.
        ImageFailed,
        /// kubeadm failed.
        KubeadmFailed,
        /// A service does not run.
        ServiceFailed,
        /// The host did not restart although it was asked to.
        RebootFailed,
        /// The host restarted, and a restart is still due.
        RebootIneffective,
        /// A change seemed to succeed, and the version is still another.
        VersionUnchanged,
        /// node-agent or the host ended in the middle.
        Interrupted,
        /// The provider does not answer or is busy with the host; it is told later that the host is initialized.
        ProviderUnavailable,
        /// The provider refuses to be told that the host is initialized.
        ProviderFailed,
        /// The host could not be looked at.
        ObservationFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_is_compact_json_with_stable_codes() {
        let state = State {
            phase: Phase::Quarantined,
            reason: Reason::PackageFailed,
            message: "x".into(),
            since: Timestamp::from_second(0).unwrap(),
            attempt: 3,
            boot_id: "b".into(),
            agent_version: "0.1.0".into(),
        };
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(
            text,
            r#"{"phase":"Quarantined","reason":"PackageFailed","message":"x","since":"1970-01-01T00:00:00Z","attempt":3,"bootId":"b","agentVersion":"0.1.0"}"#
        );
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    }

    #[test]
    fn the_runbook_has_every_code_and_no_other() {
        let runbook = include_str!("../../docs/usage/reasons.md");
        let mut headings: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        headings.sort_unstable();
        let mut reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        reasons.sort_unstable();
        assert_eq!(headings, reasons);
        let row = |line: &'static str| Some(line.strip_prefix("| `")?.split_once('`')?.0);
        let rows: Vec<&str> = runbook.lines().filter_map(row).collect();
        let phases: Vec<&str> = Phase::ALL.iter().map(|phase| phase.as_str()).collect();
        assert_eq!(rows, phases);
    }
}

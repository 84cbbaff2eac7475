//! node-agent on hosts that are in no cluster yet: it follows their initial metadata, whatever goes wrong.

mod crashes;
mod faults;
mod frozen;
mod metadata;
mod reboots;

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use node_agent::apt::upstream;
use tests::{
    bundles,
    harness::{Case, Tier, suite},
};

const LIMIT: Duration = Duration::from_mins(6);

/// How long an agent may take for what takes it some seconds on an idle machine.
const PATIENCE: Duration = Duration::from_mins(3);

fn main() -> ExitCode {
    suite([
        Case::new(
            Tier::T4,
            "a_host_reaches_its_metadata_restarts_once_and_says_so",
            LIMIT,
            metadata::reached,
        ),
        Case::new(
            Tier::T4,
            "a_package_that_cannot_be_installed_is_quarantined",
            LIMIT,
            faults::broken_package,
        ),
        Case::new(Tier::T4, "a_conflict_removes_nobodys_package", LIMIT, faults::conflict),
        Case::new(Tier::T4, "a_held_lock_is_waited_for_and_then_named", LIMIT, faults::held_lock),
        Case::new(Tier::T4, "a_full_disk_is_named", LIMIT, faults::full_disk),
        Case::new(Tier::T4, "without_a_journal_nothing_begins", LIMIT, faults::full_journal),
        Case::new(
            Tier::T4,
            "a_repository_with_a_wrong_signature_is_not_trusted",
            LIMIT,
            faults::wrong_signature,
        ),
        Case::new(
            Tier::T4,
            "kill_after_every_journal_step_changes_nothing_in_the_end",
            LIMIT,
            crashes::killed,
        ),
        Case::new(Tier::T4, "a_power_cut_during_apt_is_mended", LIMIT, crashes::power_cut_during_apt),
        Case::new(Tier::T4, "an_agent_that_hangs_is_started_again", LIMIT, frozen::started_again),
        Case::new(Tier::T4, "a_reboot_that_does_not_help_is_not_repeated", LIMIT, reboots::ineffective),
        Case::new(Tier::T4, "a_reboot_waits_for_whoever_inhibits_it", LIMIT, reboots::inhibited),
    ])
}

/// Versions of the older bundle as the inside of a flow map.
fn versions() -> anyhow::Result<String> {
    let [old, _] = bundles::pinned()?;
    let manifest = old.manifest();
    let containerd = manifest.packages.iter().find(|package| package.name == "containerd");
    let containerd = upstream(&containerd.context("the bundle has containerd")?.version);
    let kubernetes = &manifest.kubernetes;
    Ok(format!(
        "kubelet: {kubernetes}, kubeadm: {kubernetes}, kubectl: {kubernetes}, containerd: {containerd}"
    ))
}

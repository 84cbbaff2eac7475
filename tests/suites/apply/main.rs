//! `infrop apply`, as CI runs it: the real program, from a document to a cluster.

mod budgets;
mod course;
mod ha;
mod kills;
mod life;
mod reboot;
mod static_hosts;

use std::{process::ExitCode, time::Duration};

use tests::harness::{Case, Tier, suite};

fn main() -> ExitCode {
    suite([
        Case::new(Tier::T4, "a_cluster_is_made_scaled_and_given_back", Duration::from_mins(20), life::whole),
        Case::new(
            Tier::T4,
            "the_control_plane_that_has_the_endpoint_is_lost",
            Duration::from_mins(12),
            ha::holder_is_lost,
        ),
        Case::new(
            Tier::T4,
            "killed_at_random_moments_it_ends_the_same",
            Duration::from_mins(20),
            kills::killed,
        ),
        Case::new(
            Tier::T4,
            "static_hosts_with_faults_have_reasons_and_the_others_finish",
            Duration::from_mins(20),
            static_hosts::faults,
        ),
    ])
}

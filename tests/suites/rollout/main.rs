//! T4: a cluster goes from one Kubernetes version to the next by annotations, under load, while things go wrong.

mod history;
mod probe;
mod upgrade;
mod workload;

use std::{process::ExitCode, time::Duration};

use tests::harness::{Case, Tier, suite};

fn main() -> ExitCode {
    suite([Case::new(
        Tier::T4,
        "three_control_planes_and_three_workers_go_to_the_next_version",
        Duration::from_mins(40),
        upgrade::under_load,
    )])
}

//! node-agent as a real process against a real API server, with the identity a kubelet has and infrop's admission
//! policies in force: the handshake, garbage, faults, and what it asks of the server.

#[path = "agent_api/endpoint.rs"]
mod endpoint;
#[path = "agent_api/faults.rs"]
mod faults;
#[path = "agent_api/fixture.rs"]
mod fixture;
#[path = "agent_api/garbage.rs"]
mod garbage;
#[path = "agent_api/handshake.rs"]
mod handshake;
#[path = "agent_api/ironic.rs"]
mod ironic;
#[path = "agent_api/kubeadm.rs"]
mod kubeadm;
#[path = "agent_api/manners.rs"]
mod manners;
#[path = "agent_api/plan.rs"]
mod plan;
#[path = "agent_api/refused.rs"]
mod refused;
#[path = "agent_api/relay.rs"]
mod relay;

use std::{process::ExitCode, time::Duration};

use tests::harness::{Case, Tier, suite};

/// A start of the server takes seconds; the rest is for a machine that does something else as well.
const LIMIT: Duration = Duration::from_mins(4);

fn main() -> ExitCode {
    suite([
        Case::new(Tier::T3, "it_speaks_as_soon_as_it_can", LIMIT, handshake::it_speaks_as_soon_as_it_can),
        Case::new(Tier::T3, "a_plan_needs_a_permit", LIMIT, handshake::a_plan_needs_a_permit),
        Case::new(Tier::T3, "no_permit_and_a_pause_stop_it", LIMIT, handshake::no_permit_and_a_pause_stop_it),
        Case::new(Tier::T3, "garbage_changes_nothing", LIMIT, garbage::garbage_changes_nothing),
        Case::new(Tier::T3, "a_plan_survives_the_api_server", LIMIT, faults::a_plan_survives_the_api_server),
        Case::new(Tier::T3, "a_cut_is_heard_and_healed", LIMIT, faults::a_cut_is_heard_and_healed),
        Case::new(Tier::T3, "a_hanging_watch_is_begun_anew", LIMIT, faults::a_hanging_watch_is_begun_anew),
        Case::new(
            Tier::T3,
            "a_restart_of_the_server_is_survived",
            LIMIT,
            faults::a_restart_of_the_server_is_survived,
        ),
        Case::new(Tier::T3, "kill_9_is_survived", LIMIT, faults::kill_9_is_survived),
        Case::new(Tier::T3, "another_credential_is_taken_up", LIMIT, faults::another_credential_is_taken_up),
        Case::new(
            Tier::T3,
            "an_unfinished_kubeadm_is_finished",
            LIMIT,
            kubeadm::it_is_finished_although_all_versions_are_there,
        ),
        Case::new(
            Tier::T3,
            "an_unfinished_kubeadm_waits_for_the_cluster",
            LIMIT,
            kubeadm::it_waits_for_the_clusters_answer,
        ),
        Case::new(Tier::T3, "plan_says_what_would_be_done", LIMIT, plan::plan_says_what_would_be_done),
        Case::new(
            Tier::T3,
            "what_cannot_be_told_is_not_begun",
            LIMIT,
            refused::what_cannot_be_told_is_not_begun,
        ),
        Case::new(Tier::T3, "a_refused_report_is_repeated", LIMIT, refused::a_refused_report_is_repeated),
        Case::new(Tier::T3, "it_comes_back_to_stay", LIMIT, endpoint::it_comes_back_to_stay),
        Case::new(Tier::T3, "it_asks_for_little_and_then_nothing", LIMIT, manners::it_asks_for_little),
        Case::new(Tier::T2(&[]), "ironic_is_told", LIMIT, ironic::ironic_is_told),
        Case::new(Tier::T2(&[]), "ironic_refuses", LIMIT, ironic::ironic_refuses),
        Case::new(Tier::T2(&[]), "a_token_goes_nowhere_else", LIMIT, ironic::a_token_goes_nowhere_else),
        Case::new(Tier::T2(&["dpkg-query"]), "a_host_marks_itself", LIMIT, ironic::a_host_marks_itself),
    ])
}

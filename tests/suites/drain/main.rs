//! Emptying a node: every answer that the eviction API gives, by a scripted server and by a real one. And what comes
//! after it: checks, what is remembered of a node's turn, and what becomes of it if somebody else writes meanwhile.

mod answers;
mod cordons;
mod fixture;
mod jobs;
mod meanwhile;
mod nodes;
mod real;
mod rules;
mod takeover;
mod turn;

use std::{process::ExitCode, time::Duration};

use tests::harness::{Case, Tier, suite};

/// Each case takes seconds; the rest is for a machine that does something else as well.
const LIMIT: Duration = Duration::from_mins(4);

fn main() -> ExitCode {
    let scripted = Tier::T2(&[]);
    suite([
        Case::new(scripted, "accepted_and_gone", LIMIT, answers::accepted_and_gone),
        Case::new(scripted, "a_budget_holds_and_is_named", LIMIT, answers::a_budget_holds_and_is_named),
        Case::new(scripted, "retry_after_is_honoured", LIMIT, answers::retry_after_is_honoured),
        Case::new(scripted, "two_budgets_end_it_at_once", LIMIT, answers::two_budgets_end_it_at_once),
        Case::new(scripted, "another_of_the_same_name_is_another", LIMIT, answers::another_of_the_same_name),
        Case::new(scripted, "trouble_passes_and_a_missing_right_does_not", LIMIT, answers::trouble_passes),
        Case::new(scripted, "a_namespace_that_ends_takes_its_pods", LIMIT, answers::a_namespace_that_ends),
        Case::new(scripted, "pods_that_would_be_lost_are_refused", LIMIT, rules::would_be_lost),
        Case::new(scripted, "those_of_the_node_stay", LIMIT, rules::those_of_the_node_stay),
        Case::new(scripted, "what_is_left_in_the_end_is_deleted", LIMIT, rules::deleted_in_the_end),
        Case::new(scripted, "many_go_together", LIMIT, rules::many_go_together),
        Case::new(scripted, "an_announcement_is_not_written_over", LIMIT, takeover::nothing_is_written_over),
        Case::new(Tier::T3, "a_real_budget_holds_and_lets_go", LIMIT, real::a_budget_holds_and_lets_go),
        Case::new(Tier::T3, "a_preview_counts_nothing_down", LIMIT, real::a_preview_counts_nothing_down),
        Case::new(Tier::T3, "two_real_budgets_are_a_mistake", LIMIT, real::two_budgets_are_a_mistake),
        Case::new(Tier::T3, "a_real_namespace_that_ends", LIMIT, real::a_namespace_that_ends),
        Case::new(Tier::T3, "a_persons_cordon_stays_theirs", LIMIT, cordons::a_persons_cordon_stays_theirs),
        Case::new(Tier::T3, "a_check_is_a_job_to_its_end", LIMIT, jobs::a_job_is_run_to_its_end),
        Case::new(Tier::T3, "a_job_that_was_left_goes", LIMIT, jobs::a_job_that_was_left_goes),
        Case::new(Tier::T3, "a_turn_is_checked_and_remembered", LIMIT, turn::checked_measured_and_remembered),
        Case::new(Tier::T3, "a_write_that_came_too_late_is_lost", LIMIT, meanwhile::a_late_write_is_lost),
        Case::new(Tier::T3, "a_permit_on_its_way_is_fenced_off", LIMIT, meanwhile::a_permit_is_fenced_off),
        Case::new(Tier::T3, "who_was_overtaken_permits_nothing", LIMIT, meanwhile::who_was_overtaken),
        Case::new(Tier::T3, "etcd_is_asked_before_each", LIMIT, meanwhile::etcd_is_asked_before_each),
    ])
}

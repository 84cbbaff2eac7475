//! What is only wrong beside something else: pure functions of the document's parts, one per rule.

mod groups;
mod hosts;
mod network;
pub(super) mod rollout;
mod software;

use super::{parts::Parts, problem::Finding};

/// All rules.
pub(super) fn check(parts: &Parts) -> Vec<Finding> {
    [
        groups::providers_and_pools,
        groups::pools_are_used_once,
        groups::enough_hosts,
        groups::one_network,
        groups::taints_are_different,
        hosts::names_are_different,
        hosts::addresses_are_different,
        hosts::addresses_are_those_of_hosts,
        hosts::host_keys_are_known,
        network::endpoint,
        network::subnets,
        network::subnets_are_apart,
        software::kubernetes,
        software::kubernetes_steps,
        software::versions,
        software::endpoint,
        software::source,
        software::repositories,
        software::configuration,
        software::component_configuration,
        rollout::names_are_different,
        rollout::groups_fail_before_all,
        rollout::commands_are_there,
    ]
    .into_iter()
    .flat_map(|rule: fn(&Parts) -> Vec<Finding>| rule(parts))
    .collect()
}

//! The control plane and the worker groups beside the pools they take hosts from.

use crate::{
    desired::{
        model::Taint,
        parts::{Group, Parts, ProviderKind},
        problem::Finding,
        similar,
    },
    provider::lab,
};

/// Every group names a provider that is there, and a pool of it.
pub(super) fn providers_and_pools(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in &parts.groups {
        let Some(name) = &group.provider else { continue };
        let Some(provider) = parts.provider(name) else {
            let names: Vec<&str> = parts.providers.iter().map(|provider| provider.name.as_str()).collect();
            let problem = format!("there is no provider {name}");
            findings.push(Finding::new(group.field.key("provider"), problem, choice(name.as_str(), &names)));
            continue;
        };
        let Some(pool) = &group.pool else { continue };
        if provider.kind != ProviderKind::Unreadable && parts.pool_of(group).is_none() {
            let names: Vec<&str> = provider.pools.iter().map(|pool| pool.name.as_str()).collect();
            let problem = format!("provider {name} has no pool {pool}");
            findings.push(Finding::new(group.field.key("pool"), problem, choice(pool.as_str(), &names)));
        }
    }
    findings
}

fn choice(text: &str, names: &[&str]) -> String {
    match similar::among(text, names.iter().copied()) {
        Some(meant) => format!("did you mean {meant}?"),
        None if names.is_empty() => "there are none at all: write one under `providers`".to_owned(),
        None => format!("there is {}", names.join(", ")),
    }
}

/// A host of a pool belongs to the pool's group, so a pool has one.
pub(super) fn pools_are_used_once(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, group) in parts.groups.iter().enumerate() {
        let (Some(provider), Some(pool)) = (&group.provider, &group.pool) else { continue };
        let same =
            |other: &&Group| other.provider.as_ref() == Some(provider) && other.pool.as_ref() == Some(pool);
        if let Some(first) = parts.groups.iter().take(index).find(same) {
            let problem = format!("pool {pool} is that of {} already", first.field);
            let hint = "give each group a pool of its own";
            findings.push(Finding::new(group.field.key("pool"), problem, hint));
        }
    }
    findings
}

/// Given hosts cannot be made.
pub(super) fn enough_hosts(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in &parts.groups {
        let (Some(nodes), Some(pool)) = (group.nodes, parts.pool_of(group)) else { continue };
        if let Some(size) = pool.size.filter(|size| *size < usize::from(nodes)) {
            let problem = format!("{nodes} nodes need as many hosts, but pool {} has {size}", pool.name);
            let hint = format!("write more hosts into {}, or ask for fewer nodes", pool.field);
            findings.push(Finding::new(group.field.key("nodes"), problem, hint));
        }
    }
    let of_lab =
        |group: &&Group| parts.provider_of(group).is_some_and(|provider| provider.kind == ProviderKind::Lab);
    let mut sum = 0;
    for group in parts.groups.iter().filter(of_lab) {
        sum += usize::from(group.nodes.unwrap_or_default());
        if sum > lab::MAX_HOSTS {
            let problem = format!("with these there are {sum} hosts, but a lab has up to {}", lab::MAX_HOSTS);
            findings.push(Finding::new(group.field.key("nodes"), problem, "ask for fewer nodes"));
            break;
        }
    }
    findings
}

/// Nodes of a cluster reach each other; hosts of a lab reach only those of the same lab.
pub(super) fn one_network(parts: &Parts) -> Vec<Finding> {
    let mut groups = parts.groups.iter().filter_map(|group| Some((group, parts.provider_of(group)?)));
    let Some((first, first_provider)) = groups.next() else { return Vec::new() };
    groups
        .filter(|(_, provider)| {
            let either = [provider.kind, first_provider.kind].contains(&ProviderKind::Lab);
            either && provider.name != first_provider.name
        })
        .map(|(group, provider)| {
            let problem = format!(
                "hosts of {} do not reach those of {} ({}): a lab is a network without a way out",
                provider.name, first_provider.name, first.field
            );
            let hint = format!("take all hosts from one lab, for example {}", first_provider.name);
            Finding::new(group.field.key("provider"), problem, hint)
        })
        .collect()
}

/// Kubernetes refuses a taint that a Node has already.
pub(super) fn taints_are_different(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in &parts.groups {
        let taints: Vec<(_, Taint)> = parts.list(&group.field.key("taints"));
        for (index, (field, taint)) in taints.iter().enumerate() {
            let mut before = taints.iter().take(index);
            if before.any(|(_, other)| other.key == taint.key && other.effect == taint.effect) {
                let problem = format!("{} has this effect already", taint.key);
                findings.push(Finding::new(field.clone(), problem, "remove one of the two"));
            }
        }
    }
    findings
}

//! Hosts beside each other.

use std::collections::BTreeMap;

use crate::desired::{
    parts::{Parts, ProviderKind, ProviderPart},
    problem::{Field, Finding},
};

/// A host's name is its Node's, so there is one of each.
pub(super) fn names_are_different(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen: BTreeMap<&str, &Field> = BTreeMap::new();
    for (field, host) in parts.hosts() {
        if let Some(first) = seen.get(host.name.as_str()) {
            let problem = format!("{} is the name of {first} already", host.name);
            findings.push(Finding::new(field.key("name"), problem, "give each host a name of its own"));
        } else {
            seen.insert(host.name.as_str(), field);
        }
    }
    findings
}

/// Two hosts with one address would be one host.
pub(super) fn addresses_are_different(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = BTreeMap::new();
    for (field, host) in parts.hosts() {
        if let Some(first) = seen.get(&host.address) {
            let problem = format!("{} is the address of {first} already", host.address);
            findings.push(Finding::new(
                field.key("address"),
                problem,
                "give each host an address of its own",
            ));
        } else {
            seen.insert(host.address, field);
        }
    }
    findings
}

/// Addresses that no host can have for others.
pub(super) fn addresses_are_those_of_hosts(parts: &Parts) -> Vec<Finding> {
    parts
        .hosts()
        .filter(|(_, host)| {
            host.address.is_loopback() || host.address.is_unspecified() || host.address.is_multicast()
        })
        .map(|(field, host)| {
            let problem = format!("{} is not an address at which other hosts reach this one", host.address);
            Finding::new(field.key("address"), problem, "write the address of its network card")
        })
        .collect()
}

/// A host whose key nobody knows could be anyone's.
pub(super) fn host_keys_are_known(parts: &Parts) -> Vec<Finding> {
    // If `ssh` is unreadable, what it says of known hosts is unknown, too.
    let Some(ssh) = &parts.ssh else { return Vec::new() };
    if ssh.known_hosts.is_some() {
        return Vec::new();
    }
    let is_static = |provider: &&ProviderPart| provider.kind == ProviderKind::Static;
    parts
        .providers
        .iter()
        .filter(is_static)
        .flat_map(|provider| &provider.pools)
        .flat_map(|pool| &pool.hosts)
        .filter(|(_, host)| host.host_keys.is_empty())
        .map(|(field, host)| {
            let hint = format!(
                "write what `ssh-keyscan {}` prints (compared with the host's console), or name a file in \
                 ssh.knownHosts",
                host.address
            );
            let problem =
                format!("nobody can tell whether {} is the one meant: its host key is not known", host.name);
            Finding::new(field.key("hostKeys"), problem, hint)
        })
        .collect()
}

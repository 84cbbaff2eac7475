//! Addresses of hosts, endpoint, pods and services beside each other.

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    desired::{
        names::Subnet,
        parts::{Part, Parts, ProviderKind},
        problem::{Field, Finding},
    },
    provider::lab,
};

/// What kube-controller-manager gives each node of the pods' range, unless told otherwise.
const NODE_LENGTH: (u8, u8) = (24, 64);

/// kube-controller-manager refuses to cut a range into more than 2^16 of those.
const MAX_NODE_BITS: u8 = 16;

/// kube-apiserver takes no range of services with more than 2^20 addresses.
const MAX_SERVICE_BITS: u8 = 20;

/// kubeadm gives the tenth address to DNS.
const MIN_SERVICE_BITS: u8 = 4;

fn field(name: &str) -> Field {
    Field::of(&["cluster", name])
}

/// Where the API answers, beside how many control planes there are and which addresses hosts have.
pub(super) fn endpoint(parts: &Parts) -> Vec<Finding> {
    let control_plane = parts.groups.first().filter(|group| group.is_control_plane);
    let nodes = control_plane.and_then(|group| group.nodes).unwrap_or_default();
    let endpoint = match &parts.endpoint {
        Part::There(endpoint) => endpoint,
        Part::Missing if nodes > 1 => {
            let problem =
                format!("is missing: {nodes} control planes need an address that leads to all of them");
            let hint = "write `endpoint: { host: ADDRESS }` with a free address of the hosts' network, or, if a load \
                        balancer has it, `external: true` beside it";
            return vec![Finding::new(field("endpoint"), problem, hint)];
        }
        Part::Missing | Part::Unreadable => return Vec::new(),
    };
    if endpoint.external {
        return Vec::new();
    }
    let field = field("endpoint").key("host");
    let Ok(address) = endpoint.host.parse::<IpAddr>() else {
        let problem = format!("{} is not an IP address, so no control plane can carry it", endpoint.host);
        let hint = "write a free address of the hosts' network, or `external: true` if something else leads the name \
                    to the control planes";
        return vec![Finding::new(field, problem, hint)];
    };
    let mut findings = Vec::new();
    if let Some((other, host)) = parts.hosts().find(|(_, host)| host.address == address) {
        let problem =
            format!("{address} is the address of {} ({other}), but it has to move between hosts", host.name);
        let hint =
            "write a free address of the hosts' network; with one control plane the endpoint may be left out";
        findings.push(Finding::new(field.clone(), problem, hint));
    }
    let of_lab = control_plane
        .and_then(|group| parts.provider_of(group))
        .is_some_and(|provider| provider.kind == ProviderKind::Lab);
    if of_lab && !lab_can_carry(address) {
        let [.., gateway] = lab::GATEWAY.octets();
        let low = virtual_address(gateway.saturating_add(1));
        let high = virtual_address(lab::FIRST_HOST.saturating_sub(1));
        let problem = format!("{address} is not one of the addresses that a lab has free for this");
        findings.push(Finding::new(field, problem, format!("write one from {low} to {high}")));
    }
    findings
}

/// The address with that number in a lab's network.
fn virtual_address(number: u8) -> Ipv4Addr {
    let [a, b, c, _] = lab::GATEWAY.octets();
    Ipv4Addr::new(a, b, c, number)
}

fn lab_can_carry(address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    let [.., number] = address.octets();
    let [.., gateway] = lab::GATEWAY.octets();
    virtual_address(number) == address && number > gateway && number < lab::FIRST_HOST
}

/// Each range by itself: as large as Kubernetes takes it, and of the hosts' family.
pub(super) fn subnets(parts: &Parts) -> Vec<Finding> {
    let Some(networking) = &parts.networking else { return Vec::new() };
    let (pods, services) = (networking.pod_subnet, networking.service_subnet);
    let mut findings = Vec::new();
    let node = if pods.is_ipv4() { NODE_LENGTH.0 } else { NODE_LENGTH.1 };
    let nodes: u32 = parts.groups.iter().filter_map(|group| group.nodes).map(u32::from).sum();
    let room = node.checked_sub(pods.length()).map(|bits| 1_u32.checked_shl(bits.into()).unwrap_or(u32::MAX));
    let pods_field = field("networking").key("podSubnet");
    if room.is_none_or(|room| room < nodes) {
        let problem = format!(
            "{pods} is too small: each node takes a range /{node} of it, and there are {nodes} nodes"
        );
        findings.push(Finding::new(
            pods_field.clone(),
            problem,
            "write a larger range, such as 10.244.0.0/16",
        ));
    } else if node - pods.length() > MAX_NODE_BITS {
        let problem = format!("{pods} is too large: Kubernetes takes up to /{}", node - MAX_NODE_BITS);
        findings.push(Finding::new(
            pods_field.clone(),
            problem,
            "write a smaller range, such as 10.244.0.0/16",
        ));
    }
    let services_field = field("networking").key("serviceSubnet");
    let bits = if services.is_ipv4() { 32 } else { 128 } - services.length();
    if !(MIN_SERVICE_BITS..=MAX_SERVICE_BITS).contains(&bits) {
        let largest = services.length() + bits - MAX_SERVICE_BITS;
        let smallest = services.length() + bits - MIN_SERVICE_BITS;
        let problem = format!("{services} is not a size that Kubernetes takes: /{largest} to /{smallest}");
        findings.push(Finding::new(services_field.clone(), problem, "write a range such as 10.96.0.0/12"));
    }
    let family = |is_ipv4: bool| if is_ipv4 { "IPv4" } else { "IPv6" };
    if pods.is_ipv4() != services.is_ipv4() {
        let problem = format!(
            "{services} is {}, but podSubnet {pods} is {}",
            family(services.is_ipv4()),
            family(pods.is_ipv4())
        );
        findings.push(Finding::new(services_field, problem, "write both ranges in the same family"));
    }
    for (host_field, host) in parts.hosts().filter(|(_, host)| host.address.is_ipv4() != pods.is_ipv4()) {
        let problem = format!("{} is not of the family of podSubnet {pods}", host.address);
        let hint = "write addresses of hosts, pods and services in the same family";
        findings.push(Finding::new(host_field.key("address"), problem, hint));
    }
    findings
}

/// No address means two things.
pub(super) fn subnets_are_apart(parts: &Parts) -> Vec<Finding> {
    let Some(networking) = &parts.networking else { return Vec::new() };
    let (pods, services) = (networking.pod_subnet, networking.service_subnet);
    let fields = [("podSubnet", pods), ("serviceSubnet", services)];
    let mut findings = Vec::new();
    if pods.overlaps(services) {
        let problem = format!("{services} overlaps podSubnet {pods}");
        let hint = "write two ranges that share no address, such as 10.244.0.0/16 for pods and 10.96.0.0/12 for services";
        findings.push(Finding::new(field("networking").key("serviceSubnet"), problem, hint));
    }
    let lab = Subnet::around(lab::GATEWAY.into(), lab::PREFIX_LENGTH);
    for (name, subnet) in fields {
        if parts.uses(ProviderKind::Lab) && subnet.overlaps(lab) {
            let problem = format!("{subnet} overlaps the lab's own network {lab}");
            let hint = "write a range that shares no address with it";
            findings.push(Finding::new(field("networking").key(name), problem, hint));
        }
        for (host_field, host) in parts.hosts().filter(|(_, host)| subnet.contains(host.address)) {
            let problem = format!("{} is in {name} {subnet}", host.address);
            let hint =
                format!("write another range into cluster.networking.{name}: hosts stay outside of it");
            findings.push(Finding::new(host_field.key("address"), problem, hint));
        }
        let endpoint = parts.endpoint.there().and_then(|endpoint| endpoint.host.parse::<IpAddr>().ok());
        if let Some(address) = endpoint.filter(|address| subnet.contains(*address)) {
            let problem = format!("{address} is in {name} {subnet}");
            let hint = format!("write an address of the hosts' network, or another {name}");
            findings.push(Finding::new(field("endpoint").key("host"), problem, hint));
        }
    }
    findings
}

//! The API's address, carried by the control planes themselves: keepalived gives it to a host whose haproxy runs, and
//! haproxy leads to an API server that answers.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use super::kubeadm::API_PORT;
use crate::desired::Endpoint;

/// What carries it, as software under node-agent's care. Only control planes have it.
pub const SOFTWARE: [&str; 2] = ["haproxy", "keepalived"];

/// An endpoint that the control planes carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The address that moves between hosts.
    pub address: IpAddr,
    /// The port on it.
    pub port: u16,
}

impl Carried {
    /// Of the document's endpoint; none if someone else carries it.
    pub fn of(endpoint: &Endpoint) -> Option<Self> {
        let Endpoint { host, port, external } = endpoint;
        // The document was checked: what is not external is an address.
        let address = (!external).then(|| host.parse().ok()).flatten()?;
        Some(Self { address, port: *port })
    }

    /// Where API servers listen: haproxy has the endpoint's port on the same hosts.
    pub fn api_server_port(self) -> u16 {
        if self.port == API_PORT { API_PORT + 1 } else { API_PORT }
    }

    /// Where node-agent of the control plane with `address` says whether calls may be led to it.
    pub fn agent_address(self, address: IpAddr) -> SocketAddr {
        let usual = API_PORT + 2;
        SocketAddr::new(address, if self.port == usual { usual + 1 } else { usual })
    }

    /// `/etc/haproxy/haproxy.cfg`. Calls are TLS from end to end; only checks speak it by themselves, and who answers
    /// there proves nothing, so nothing is verified.
    pub fn haproxy(self, api_servers: &BTreeSet<IpAddr>) -> String {
        let any = if self.address.is_ipv4() { "*" } else { "::" };
        // An idle watch is silent for long, a dead host for ever: keep-alives and unanswered data tell them apart. A host
        // that is gone does not refuse, so the attempt ends early and goes to another one, also before the checks know.
        // Who has a connection to an API server that is not ready any more loses it and finds another: without its etcd
        // a server lets calls hang, and kubelets that stay with it are taken for dead. One that only says that it will
        // stop ends its connections itself, in order; and node-agent says beforehand when nobody should come any more.
        // Where nobody is ready, for etcd has no leader or the only control plane is being changed, any one is tried:
        // what does not need etcd is answered, and who refuses is not worse than nobody.
        let mut text = format!(
            "global\n    user haproxy\n    group haproxy\n\n\
             defaults\n    mode tcp\n    retries 3\n    option redispatch 1\n    \
             option clitcpka\n    option srvtcpka\n    srvtcpka-idle 3s\n    srvtcpka-intvl 1s\n    srvtcpka-cnt 3\n    \
             timeout connect 1s\n    timeout check 3s\n    \
             timeout client 1h\n    timeout server 1h\n\n\
             frontend api\n    bind {any}:{}\n    default_backend api-servers\n\n\
             backend api-servers\n    balance roundrobin\n    option allbackups\n    \
             option httpchk GET /readyz?exclude=shutdown\n    \
             http-check expect status 200\n    \
             default-server check check-ssl verify none inter 1s fall 3 rise 1 tcp-ut 5s \
             agent-check agent-inter 1s on-marked-down shutdown-sessions\n",
            self.port
        );
        let mut unready = Vec::new();
        for address in api_servers {
            let server = SocketAddr::new(*address, self.api_server_port());
            // A name has no colons, which addresses of IPv6 have.
            let name = address.to_string().replace(':', "-");
            let agent = self.agent_address(*address).port();
            let _ = writeln!(text, "    server {name} {server} agent-port {agent}");
            unready.push(format!("    server {name}-unready {server} backup no-check no-agent-check\n"));
        }
        text.extend(unready);
        text
    }

    /// `/etc/keepalived/keepalived.conf` of the host with `address` on `interface`. It does not name the others, so it
    /// stays the same when they come and go.
    pub fn keepalived(self, address: IpAddr, interface: &str) -> String {
        let length = if self.address.is_ipv4() { 32 } else { 128 };
        // Version 3 of VRRP has fractions of a second: others stand up after three of them without a word.
        format!(
            "global_defs {{\n    vrrp_version 3\n    script_user root\n    enable_script_security\n}}\n\n\
             vrrp_script haproxy {{\n    script \"/usr/bin/systemctl is-active --quiet haproxy.service\"\n    \
             interval 1\n    timeout 3\n    fall 2\n    rise 1\n    init_fail\n}}\n\n\
             vrrp_instance api {{\n    state BACKUP\n    nopreempt\n    interface {interface}\n    \
             virtual_router_id {}\n    priority {}\n    advert_int 0.5\n    \
             virtual_ipaddress {{\n        {}/{length}\n    }}\n    track_script {{\n        haproxy\n    }}\n}}\n",
            last_byte(self.address).max(1),
            priority(address),
            self.address
        )
    }
}

fn last_byte(address: IpAddr) -> u8 {
    let [.., last] = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    last
}

/// Who stands up first. Neighbours are far apart, for a host waits the longer the lower it is, and two that stand up at
/// once would have to settle it between them. From 1 to 254: others have a meaning of their own.
fn priority(address: IpAddr) -> u16 {
    // 83 has no factor in common with 254, so that 254 addresses in a row have as many priorities.
    u16::from(last_byte(address)) * 83 % 254 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, port: u16, external: bool) -> Endpoint {
        Endpoint { host: host.to_owned(), port, external }
    }

    #[test]
    fn api_servers_agents_and_haproxy_never_want_the_same_port() {
        let host = "192.0.2.11".parse().unwrap();
        for (port, expected, agent) in
            [(6443, 6444, 6445), (443, 6443, 6445), (6444, 6443, 6445), (6445, 6443, 6446)]
        {
            let carried = Carried::of(&endpoint("192.0.2.10", port, false)).unwrap();
            assert_eq!((carried.api_server_port(), carried.agent_address(host).port()), (expected, agent));
        }
        assert_eq!(Carried::of(&endpoint("192.0.2.10", 6443, true)), None);
        assert_eq!(Carried::of(&endpoint("api.example.org", 6443, true)), None);
    }

    #[test]
    fn haproxy_leads_to_all_of_them() {
        let carried = Carried::of(&endpoint("192.0.2.10", 6443, false)).unwrap();
        let text =
            carried.haproxy(&["192.0.2.12", "192.0.2.11"].map(|address| address.parse().unwrap()).into());
        assert!(text.contains("\n    bind *:6443\n"), "{text}");
        assert!(text.ends_with(
            "    server 192.0.2.11 192.0.2.11:6444 agent-port 6445\n    \
                 server 192.0.2.12 192.0.2.12:6444 agent-port 6445\n    \
                 server 192.0.2.11-unready 192.0.2.11:6444 backup no-check no-agent-check\n    \
                 server 192.0.2.12-unready 192.0.2.12:6444 backup no-check no-agent-check\n"
        ));
        let carried = Carried::of(&endpoint("2001:db8::a", 443, false)).unwrap();
        let text = carried.haproxy(&["2001:db8::1".parse().unwrap()].into());
        assert!(text.contains("\n    bind :::443\n"), "{text}");
        assert!(
            text.ends_with(
                "    server 2001-db8--1 [2001:db8::1]:6443 agent-port 6445\n    \
                     server 2001-db8--1-unready [2001:db8::1]:6443 backup no-check no-agent-check\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn keepalived_has_the_hosts_interface_and_the_addresss_number() {
        let carried = Carried::of(&endpoint("192.0.2.10", 6443, false)).unwrap();
        let text = carried.keepalived("192.0.2.11".parse().unwrap(), "eth0");
        for part in [
            "interface eth0\n",
            "virtual_router_id 10\n",
            "192.0.2.10/32\n",
            "priority 152\n",
            "state BACKUP\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let carried = Carried::of(&endpoint("192.0.2.0", 6443, false)).unwrap();
        assert!(
            carried.keepalived("192.0.2.11".parse().unwrap(), "eth0").contains("virtual_router_id 1\n"),
            "0 is not allowed"
        );
    }

    #[test]
    fn neighbours_have_different_priorities() {
        let priorities: BTreeSet<u16> = (1..=254).map(|last| priority([192, 0, 2, last].into())).collect();
        assert_eq!((priorities.len(), priorities.first(), priorities.last()), (254, Some(&1), Some(&254)));
        for last in 1..=252_u8 {
            let [one, two, three] = [last, last + 1, last + 2].map(|last| priority([192, 0, 2, last].into()));
            assert!(one.abs_diff(two) >= 83 && one.abs_diff(three) >= 83, "{one} {two} {three}");
        }
    }
}

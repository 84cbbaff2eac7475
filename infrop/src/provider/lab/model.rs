//! What a lab is: names, addresses, hosts.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
};

use common::checked_text;
use serde::{Deserialize, Serialize};

use super::{
    error::{At, Error},
    paths::Paths,
};
use crate::random;

/// Where the Kubernetes API listens on a host.
pub const API_PORT: u16 = 6443;

/// The lab's own end of the bridge: hosts' gateway, and where ssh comes from.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// The length of the network's prefix.
pub const PREFIX_LENGTH: u8 = 24;

/// Hosts are numbered from here: below are the gateway and room for virtual addresses.
pub const FIRST_HOST: u8 = 11;

/// More would not run on one computer, and each needs an address.
pub const MAX_HOSTS: usize = 200;

/// The name of a lab. Short, because a socket in its directory must fit into 108 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabName(String);

/// The name of a host, which becomes its host name and the name of its Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

const LAB_NAME_LIMIT: usize = 32;
const HOST_NAME_LIMIT: usize = 63;

checked_text!(LabName, Error::name("lab", LAB_NAME_LIMIT), |text| is_name(text, LAB_NAME_LIMIT));
checked_text!(HostName, Error::name("host", HOST_NAME_LIMIT), |text| is_name(text, HOST_NAME_LIMIT));

impl Error {
    /// Of a text that is no name.
    fn name(what: &'static str, limit: usize) -> impl Fn(String) -> Self {
        move |text| Self::Name { what, text, limit }
    }
}

/// Names go into paths, host names and command lines: nothing that means something there.
fn is_name(text: &str, limit: usize) -> bool {
    text.len() <= limit
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// A host of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: HostName,
    /// Its address in the lab's network; another host's, once this one is removed.
    pub address: Ipv4Addr,
    /// Its public ssh host key, as in `known_hosts`; never another host's.
    pub host_key: String,
}

/// `lab.json`: what a lab is. What of it runs is known to its supervisor only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Definition {
    /// Its name.
    pub name: LabName,
    /// Tells its machines and control groups from those of other labs; short, for it is part of names of
    /// network cards, which have 15 characters.
    pub id: String,
    /// The infrastructure it belongs to, if it was made for one.
    pub owner: Option<String>,
    /// The root file system hosts start from.
    pub root: PathBuf,
    /// Its hosts, in the order they came.
    pub hosts: Vec<Host>,
    /// Whether it ends with the process that made it.
    pub tied: bool,
    /// Whether its maker saw all hosts answer; until then its maker's end is its end, too.
    pub complete: bool,
    /// The infrop program that supervises it.
    pub infrop: PathBuf,
    /// The port on 127.0.0.1 that leads to the API endpoint; 0 until it was chosen.
    pub api_port: u16,
    /// The address in the lab that the port leads to: that of the first host, until somebody says otherwise.
    pub api_address: Option<SocketAddrV4>,
}

impl Definition {
    /// A lab without hosts.
    pub(super) fn new(name: LabName, root: PathBuf, infrop: PathBuf) -> Result<Self, Error> {
        Ok(Self {
            name,
            id: random_hex(3)?,
            owner: None,
            root,
            hosts: Vec::new(),
            tied: false,
            complete: false,
            infrop,
            api_port: 0,
            api_address: None,
        })
    }

    /// The lowest address that no host has.
    pub(super) fn free_address(&self) -> Result<Ipv4Addr, Error> {
        let [a, b, c, _] = GATEWAY.octets();
        (FIRST_HOST..)
            .take(MAX_HOSTS)
            .map(|number| Ipv4Addr::new(a, b, c, number))
            .find(|address| self.hosts.iter().all(|host| host.address != *address))
            .ok_or(Error::Full { limit: MAX_HOSTS })
    }

    /// Adds a host. The first one is where the API port leads, unless that was said before.
    pub(super) fn add(&mut self, host: Host) {
        self.api_address.get_or_insert(SocketAddrV4::new(host.address, API_PORT));
        self.hosts.push(host);
    }

    pub(super) fn read(paths: &Paths) -> Result<Self, Error> {
        let path = paths.definition();
        let text = fs::read_to_string(&path).at("read", &path)?;
        serde_json::from_str(&text).map_err(|source| Error::Damaged { path, source })
    }

    pub(super) fn write(&self, paths: &Paths) -> Result<(), Error> {
        let path = paths.definition();
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other).at("write", &path)?;
        replace(&path, &(text + "\n"))
    }

    /// Whether its files are wanted while it does not run.
    pub(super) fn is_kept(&self) -> bool {
        self.complete && !self.tied
    }

    /// The host of that name.
    pub fn host(&self, name: &HostName) -> Result<&Host, Error> {
        self.hosts.iter().find(|host| host.name == *name).ok_or_else(|| {
            let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let hosts = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::NoHost { lab: self.name.clone(), host: name.clone(), hosts }
        })
    }
}

impl Host {
    /// Its name among all nspawn machines of this computer.
    pub(super) fn machine(&self, lab: &Definition) -> String {
        let [.., number] = self.address.octets();
        format!("{}-{number}", lab.id)
    }

    /// The card at the bridge, as nspawn names it after the machine.
    pub(super) fn bridge_port(&self, lab: &Definition) -> String {
        format!("vb-{}", self.machine(lab))
    }
}

/// Writes a file by rename: whoever reads it sees the old or the new, also after a power cut.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let new = path.with_extension("new");
    fs::write(&new, text).at("write", &new)?;
    File::open(&new).and_then(|file| file.sync_all()).at("write", &new)?;
    fs::rename(&new, path).at("write", path)
}

/// Random bytes, in hexadecimal.
pub(super) fn random_hex(bytes: usize) -> Result<String, Error> {
    random::hex(bytes).at("read", Path::new(random::SOURCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(hosts: &[&str]) -> Definition {
        let mut lab = Definition::new("demo".parse().unwrap(), "/r".into(), "/i".into()).unwrap();
        for name in hosts {
            add(&mut lab, name);
        }
        lab
    }

    fn add(lab: &mut Definition, name: &str) {
        let address = lab.free_address().unwrap();
        lab.add(Host { name: name.parse().unwrap(), address, host_key: String::new() });
    }

    fn addresses(lab: &Definition) -> Vec<String> {
        lab.hosts.iter().map(|host| host.address.to_string()).collect()
    }

    #[test]
    fn hosts_get_the_lowest_free_address_and_cards_with_names_that_fit() {
        let mut lab = definition(&["cp1", "a-very-long-but-permitted-host-name", "w1"]);
        assert_eq!(addresses(&lab), ["10.88.0.11", "10.88.0.12", "10.88.0.13"]);
        for host in &lab.hosts {
            assert!(host.bridge_port(&lab).len() <= 15);
        }
        lab.hosts.remove(1);
        add(&mut lab, "w2");
        add(&mut lab, "w3");
        assert_eq!(addresses(&lab), ["10.88.0.11", "10.88.0.13", "10.88.0.12", "10.88.0.14"]);
    }

    #[test]
    fn the_api_port_leads_to_the_first_host_ever() {
        let mut lab = definition(&[]);
        assert_eq!(lab.api_address, None);
        add(&mut lab, "a");
        let first = lab.api_address;
        assert_eq!(first, Some(SocketAddrV4::new(lab.hosts[0].address, API_PORT)));
        add(&mut lab, "b");
        lab.hosts.remove(0);
        assert_eq!(lab.api_address, first);
    }

    #[test]
    fn there_is_a_last_address() {
        let mut lab = definition(&[]);
        for number in 0..MAX_HOSTS {
            add(&mut lab, &format!("h{number}"));
        }
        assert_eq!(addresses(&lab).last().unwrap(), "10.88.0.210");
        assert_eq!(lab.free_address().unwrap_err().to_string(), "a lab has at most 200 hosts");
    }

    #[test]
    fn names_that_mean_something_elsewhere_are_refused() {
        for text in ["", "-a", "a-", "1a", "A", "a.b", "a/b", "..", "a b", "a;b", "ä", &"a".repeat(33)] {
            assert!(text.parse::<LabName>().is_err(), "{text}");
        }
        for text in ["a", "cp1", "worker-2", &"a".repeat(32)] {
            assert_eq!(text.parse::<LabName>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_definition_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().to_owned());
        let lab = Definition { owner: Some("site".into()), ..definition(&["cp1"]) };
        lab.write(&paths).unwrap();
        assert_eq!(Definition::read(&paths).unwrap(), lab);
        fs::write(paths.definition(), "{}").unwrap();
        assert!(matches!(Definition::read(&paths).unwrap_err(), Error::Damaged { .. }));
    }
}

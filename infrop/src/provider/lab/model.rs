//! What a lab is: names, addresses, and where its files are.

use std::{
    fmt,
    fs::{self, File, TryLockError},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::error::{At, Error};

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

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $limit:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                if is_name(text, $limit) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(Error::Name { what: $what, text: text.to_owned(), limit: $limit })
                }
            }
        }

        impl TryFrom<String> for $type {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> Self {
                name.0
            }
        }
    };
}

name! {
    /// The name of a lab. Short, because a socket in its directory must fit into 108 bytes.
    LabName, "lab", 32
}

name! {
    /// The name of a host, which becomes its host name and the name of its Node.
    HostName, "host", 63
}

/// Names go into paths, host names and command lines: nothing that means something there.
fn is_name(text: &str, limit: usize) -> bool {
    text.len() <= limit
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// A directory of this computer that hosts see, read only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Here.
    pub source: PathBuf,
    /// On the hosts.
    pub target: PathBuf,
}

/// A host of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: HostName,
    /// Its address in the lab's network.
    pub address: Ipv4Addr,
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
    /// The root file system hosts start from.
    pub root: PathBuf,
    /// Its hosts.
    pub hosts: Vec<Host>,
    /// What hosts see of this computer.
    pub shares: Vec<Share>,
    /// Whether it ends with the process that made it.
    pub tied: bool,
    /// Whether its maker saw all hosts answer; until then its maker's end is its end, too.
    pub complete: bool,
    /// The infrop program that supervises it.
    pub infrop: PathBuf,
    /// The port on 127.0.0.1 that leads to the API endpoint; 0 until it was chosen.
    pub api_port: u16,
    /// The address in the lab that the port leads to.
    pub api_address: Ipv4Addr,
}

impl Definition {
    pub(super) fn new(
        name: LabName,
        hosts: &[HostName],
        root: PathBuf,
        shares: Vec<Share>,
        tied: bool,
        infrop: PathBuf,
    ) -> Result<Self, Error> {
        let mut unique = hosts.to_vec();
        unique.sort();
        unique.dedup();
        if hosts.is_empty() || hosts.len() > MAX_HOSTS || unique.len() != hosts.len() {
            let names = hosts.iter().map(HostName::as_str).collect::<Vec<_>>().join(", ");
            return Err(Error::Hosts { limit: MAX_HOSTS, names: format!("{} ({names})", hosts.len()) });
        }
        let [a, b, c, _] = GATEWAY.octets();
        let hosts: Vec<Host> = hosts
            .iter()
            .zip(FIRST_HOST..)
            .map(|(name, number)| Host { name: name.clone(), address: Ipv4Addr::new(a, b, c, number) })
            .collect();
        let api_address = hosts.first().map_or(GATEWAY, |host| host.address);
        let id = random_hex(3)?;
        Ok(Self { name, id, root, hosts, shares, tied, complete: false, infrop, api_port: 0, api_address })
    }

    pub(super) fn read(paths: &Paths) -> Result<Self, Error> {
        let path = paths.definition();
        let text = fs::read_to_string(&path).at("read", &path)?;
        serde_json::from_str(&text).map_err(|source| Error::Damaged { path, source })
    }

    pub(super) fn write(&self, paths: &Paths) -> Result<(), Error> {
        let path = paths.definition();
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other).at("write", &path)?;
        // By rename: whoever reads it sees the old or the new, also after a power cut.
        let new = path.with_extension("new");
        fs::write(&new, text + "\n").at("write", &new)?;
        File::open(&new).and_then(|file| file.sync_all()).at("write", &new)?;
        fs::rename(&new, &path).at("write", &path)
    }

    /// Whether its files are wanted while it does not run.
    pub(super) fn is_kept(&self) -> bool {
        self.complete && !self.tied
    }

    /// The host of that name.
    pub fn host(&self, name: &HostName) -> Result<&Host, Error> {
        self.hosts.iter().find(|host| host.name == *name).ok_or_else(|| Error::NoHost {
            lab: self.name.clone(),
            host: name.clone(),
            hosts: self.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", "),
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

/// Random bytes, in hexadecimal.
pub(super) fn random_hex(bytes: usize) -> Result<String, Error> {
    use std::io::Read;
    let path = Path::new("/dev/urandom");
    let mut buffer = vec![0; bytes];
    File::open(path).and_then(|mut file| file.read_exact(&mut buffer)).at("read", path)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Where the files of a lab are.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    root: PathBuf,
}

impl Paths {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn definition(&self) -> PathBuf {
        self.root.join("lab.json")
    }

    /// Held by the supervisor for as long as it lives.
    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(super) fn control(&self) -> PathBuf {
        self.root.join("control")
    }

    pub(super) fn supervisor_log(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    /// The control groups that were made for the lab, one path a line.
    pub(super) fn cgroups(&self) -> PathBuf {
        self.root.join("cgroups")
    }

    pub(super) fn ssh_directory(&self) -> PathBuf {
        self.root.join("ssh")
    }

    pub(super) fn ssh_config(&self) -> PathBuf {
        self.ssh_directory().join("config")
    }

    pub(super) fn ssh_key(&self) -> PathBuf {
        self.ssh_directory().join("id_ed25519")
    }

    pub(super) fn known_hosts(&self) -> PathBuf {
        self.ssh_directory().join("known_hosts")
    }

    pub(super) fn host(&self, name: &HostName) -> HostPaths {
        HostPaths { root: self.root.join("hosts").join(name.as_str()) }
    }

    /// Whether a supervisor lives.
    pub(super) fn is_supervised(&self) -> Result<bool, Error> {
        let path = self.lock();
        if !path.exists() {
            return Ok(false);
        }
        is_locked(&File::open(&path).at("open", &path)?, &path)
    }
}

/// Whether another process holds the lock.
pub(super) fn is_locked(file: &File, path: &Path) -> Result<bool, Error> {
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).at("lock", path),
    }
}

/// Where the files of a host are.
#[derive(Debug, Clone)]
pub(super) struct HostPaths {
    root: PathBuf,
}

impl HostPaths {
    /// What differs from the common root file system.
    pub(super) fn upper(&self) -> PathBuf {
        self.root.join("upper")
    }

    /// The overlay's own scratch.
    pub(super) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// Where the root file system is mounted, seen by the supervisor only.
    pub(super) fn mount(&self) -> PathBuf {
        self.root.join("root")
    }

    /// A directory of the real disk, for what does not work on an overlay.
    pub(super) fn data(&self, name: &str) -> PathBuf {
        self.root.join("data").join(name)
    }

    pub(super) fn console(&self) -> PathBuf {
        self.root.join("console.log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(hosts: &[&str]) -> Result<Definition, Error> {
        let hosts: Vec<HostName> = hosts.iter().map(|name| name.parse().unwrap()).collect();
        Definition::new("demo".parse().unwrap(), &hosts, "/r".into(), Vec::new(), false, "/i".into())
    }

    #[test]
    fn hosts_get_addresses_in_order_and_cards_with_names_that_fit() {
        let lab = definition(&["cp1", "a-very-long-but-permitted-host-name"]).unwrap();
        let addresses: Vec<String> = lab.hosts.iter().map(|host| host.address.to_string()).collect();
        assert_eq!(addresses, ["10.88.0.11", "10.88.0.12"]);
        assert_eq!(lab.api_address, lab.hosts[0].address);
        for host in &lab.hosts {
            assert!(host.bridge_port(&lab).len() <= 15);
        }
    }

    #[test]
    fn no_host_too_many_and_the_same_twice_are_refused() {
        assert!(definition(&[]).is_err());
        let error = definition(&["a", "b", "a"]).unwrap_err().to_string();
        assert_eq!(error, "a lab has 1 to 200 hosts with different names, not 3 (a, b, a)");
        let many: Vec<String> = (0..=MAX_HOSTS).map(|n| format!("h{n}")).collect();
        assert!(definition(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
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
        let lab = definition(&["cp1"]).unwrap();
        lab.write(&paths).unwrap();
        assert_eq!(Definition::read(&paths).unwrap(), lab);
        fs::write(paths.definition(), "{}").unwrap();
        assert!(matches!(Definition::read(&paths).unwrap_err(), Error::Damaged { .. }));
    }
}

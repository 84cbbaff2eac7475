//! Small types of the document: each allows only what cannot be anything else where it ends up.

use std::{fmt, net::IpAddr, str::FromStr};

use common::checked_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A text that a field does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct NameError {
    text: String,
    expected: &'static str,
}

impl NameError {
    /// Of a text that is not what was expected.
    fn expecting(expected: &'static str) -> impl Fn(String) -> Self {
        move |text| Self { text, expected }
    }
}

/// A number of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Count(pub u16);

/// The name of an infrastructure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("format" = "name"))]
pub struct InfrastructureName(String);

/// The name of a provider in the document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("format" = "name"))]
pub struct ProviderName(String);

/// The name of a pool of a provider.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("format" = "name"))]
pub struct PoolName(String);

/// The name of a check in the document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("format" = "name"))]
pub struct CheckName(String);

/// A public host key: its type and the key, on one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("format" = "host-key"))]
pub struct HostKey(String);

/// A range of addresses: `10.244.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", inline, extend("format" = "subnet"))]
pub struct Subnet {
    address: IpAddr,
    length: u8,
}

const A_NAME: &str =
    "a name: a-z, 0-9 and -, up to 24 characters, beginning with a letter and not ending with -";

/// Short, because it becomes part of host names and of a lab's name.
fn is_name(text: &str) -> bool {
    text.len() <= 24
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

checked_text!(InfrastructureName, NameError::expecting(A_NAME), is_name);
checked_text!(ProviderName, NameError::expecting(A_NAME), is_name);
checked_text!(PoolName, NameError::expecting(A_NAME), is_name);
checked_text!(CheckName, NameError::expecting(A_NAME), is_name);
checked_text!(
    HostKey,
    NameError::expecting("a public host key on one line, such as `ssh-ed25519 AAAA…`"),
    |text| {
        let mut words = text.split(' ');
        let kind = words.next().is_some_and(|word| word.starts_with("ssh-") || word.starts_with("ecdsa-"));
        let key = words.next().is_some_and(|word| {
            word.len() > 16 && word.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c))
        });
        kind && key && !text.contains(|c: char| c.is_control())
    }
);

impl Subnet {
    /// The default of pods.
    pub const PODS: Self = Self { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 0, 0)), length: 16 };
    /// The default of services.
    pub const SERVICES: Self =
        Self { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 0)), length: 12 };

    /// A range; none if there is something behind the prefix.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (length <= longest && masked(address, length) == address).then_some(Self { address, length })
    }

    /// The range of this length that an address is in.
    pub fn around(address: IpAddr, length: u8) -> Self {
        Self { address: masked(address, length), length }
    }

    /// Whether its addresses are of IPv4.
    pub fn is_ipv4(self) -> bool {
        self.address.is_ipv4()
    }

    /// The length of its prefix.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Whether an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
                masked(address, self.length) == self.address
            }
            _ => false,
        }
    }

    /// Whether two ranges share an address.
    pub fn overlaps(self, other: Self) -> bool {
        if self.length <= other.length { self.contains(other.address) } else { other.contains(self.address) }
    }
}

/// The address with everything behind the prefix zero.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length.into())).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

impl FromStr for Subnet {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            Self::new(address.parse().ok()?, length.parse().ok()?)
        };
        let expected = "a range of addresses such as 10.244.0.0/16, with zeros behind the prefix";
        parse().ok_or_else(|| NameError { text: text.to_owned(), expected })
    }
}

impl TryFrom<String> for Subnet {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(value: Subnet) -> Self {
        value.to_string()
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

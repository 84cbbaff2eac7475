//! Texts that a field takes, by the name they have as `format` in the schema. Each is judged by the type that it
//! becomes, if it has one; the pattern is for programs that have only the schema.

use std::{net::IpAddr, str::FromStr};

use common::{
    KubernetesVersion,
    metadata::{DropInName, KernelModule, NodeName, Sha256Text, SysctlKey, SysctlValue, Template, Word},
    software::{SoftwareName, SoftwareVersion},
};

use super::{
    names::{HostKey, PoolName, Subnet},
    rollout::Amount,
};

/// A kind of text.
#[derive(Debug)]
pub(super) struct Format {
    /// As in the schema.
    pub name: &'static str,
    /// What it looks like; it accepts all that `accepts` does, and little more.
    pub pattern: &'static str,
    /// After "is not".
    pub expected: &'static str,
    /// How it is put right.
    pub hint: &'static str,
    /// Whether a wrong text may be a secret that somebody put there, and is not repeated.
    pub confidential: bool,
    /// The judge.
    pub accepts: fn(&str) -> bool,
}

fn parses<T: FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

/// A name in DNS: also of a Kubernetes namespace or Secret.
fn is_dns_name(text: &str) -> bool {
    // The same rule: the agent's NodeName is a name in DNS.
    parses::<NodeName>(text)
}

/// Kubernetes' "qualified name" without its prefix, and what a label's value may be if it is not empty.
fn is_label_word(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_name(prefix) && is_label_word(name),
        None => is_label_word(text),
    }
}

fn is_path(text: &str) -> bool {
    // What begins like that is a key in PEM, put where its file should be named.
    !text.is_empty() && !text.starts_with("-----") && text.len() <= 4096 && !text.contains(char::is_control)
}

fn is_variable(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_user(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c))
}

fn is_secret_key(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

const DNS_NAME: &str = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$";

macro_rules! formats {
    ($($name:literal: $pattern:expr, $expected:literal, $hint:literal, $accepts:expr $(, $confidential:ident)?;)*) => {
        &[$(Format {
            name: $name,
            pattern: $pattern,
            expected: $expected,
            hint: $hint,
            confidential: formats!(@ $($confidential)?),
            accepts: $accepts,
        }),*]
    };
    (@ confidential) => { true };
    (@) => { false };
}

/// All of them.
pub(super) const ALL: &[Format] = formats! {
    "name": r"^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", "a name",
        "use a-z, 0-9 and -, up to 24 characters, beginning with a letter and not ending with -", parses::<PoolName>;
    "node-name": DNS_NAME, "a node's name",
        "use a-z, 0-9 and -, with dots between parts, as in DNS", parses::<NodeName>;
    "dns-name": DNS_NAME, "a name as in DNS", "use a-z, 0-9 and -, with dots between parts", is_dns_name;
    "host": r"^[a-z0-9:.-]+$", "an address or a name in DNS",
        "write an IP address such as 192.0.2.10, or a name such as api.example.org, without port or scheme",
        |text| parses::<IpAddr>(text) || is_dns_name(text);
    "ip": r"^[0-9A-Fa-f:.]+$", "an IP address", "write an address such as 192.0.2.10 or 2001:db8::10",
        parses::<IpAddr>;
    "subnet": r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$", "a range of addresses",
        "write address/length with zeros behind the prefix, such as 10.244.0.0/16", parses::<Subnet>;
    "host-key": r"^(ssh|ecdsa)-\S+ [A-Za-z0-9+/=]+( .*)?$", "a public host key",
        "write what `ssh-keyscan HOST` prints behind the name, such as `ssh-ed25519 AAAA…`", parses::<HostKey>,
        confidential;
    "kubernetes-version": r"^v?1\.[0-9]+\.[0-9]+$", "a Kubernetes version",
        "write a release as major.minor.patch, such as 1.37.1", parses::<KubernetesVersion>;
    "software-name": r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "the name of a software or repository",
        "use up to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit", parses::<SoftwareName>;
    "software-version": r"^[A-Za-z0-9.+~:_][A-Za-z0-9.+~:_-]{0,127}$", "a version",
        "use up to 128 of A-Z, a-z, 0-9 and . + ~ : _ -, such as 2.4.2 or 1:2.2.7-1+b2", parses::<SoftwareVersion>;
    "template": r"^\S+$", "one word without white space, with no other braces than {kubernetes} and {kubernetesMinor}",
        "remove white space and other braces", parses::<Template>;
    "word": r"^\S+$", "one word", "remove white space", parses::<Word>;
    "kernel-module": r"^[A-Za-z0-9_][A-Za-z0-9_-]*$", "a kernel module's name",
        "write it as modprobe takes it, such as br_netfilter", parses::<KernelModule>;
    "drop-in-name": r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.conf$", "a drop-in's file name",
        "use a name such as 20-site.conf, without a directory", parses::<DropInName>;
    "sysctl-key": r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$", "a kernel setting's name",
        "write it with dots, such as net.ipv4.ip_forward", parses::<SysctlKey>;
    "sysctl-value": r"^[^\n\r]+$", "a value of one line", "write it on one line", parses::<SysctlValue>;
    "sha256": r"^[0-9a-f]{64}$", "a sha256", "write the 64 digits of 0-9 and a-f that sha256sum prints",
        parses::<Sha256Text>;
    "label-key": r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$", "a key of a label or taint",
        "use up to 63 of A-Z, a-z, 0-9 and - _ ., with an optional domain before it: example.org/rack", is_label_key;
    "label-value": r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$", "a value of a label or taint",
        "use up to 63 of A-Z, a-z, 0-9 and - _ ., beginning and ending with a letter or digit",
        |text| text.is_empty() || is_label_word(text);
    "path": r"^[^\n\r\t]+$", "a path of a file", "write the file's path, relative to this document or from /", is_path,
        confidential;
    "environment-variable": r"^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable",
        "write the variable's name, such as INFROP_SSH_KEY, and never the secret itself", is_variable, confidential;
    "secret-key": r"^[A-Za-z0-9_.-]{1,253}$", "a key of a Secret",
        "write the key's name, such as ssh-privatekey, and never the secret itself", is_secret_key, confidential;
    "amount": r"^(100|[1-9][0-9]?)%$", "an amount", "write a number of nodes such as 2, or a share such as 25%",
        |text| text.ends_with('%') && parses::<Amount>(text);
    "time-of-day": r"^([01][0-9]|2[0-3]):[0-5][0-9]$", "a time of day", "write hours and minutes, such as 22:00",
        |text| text.len() == 5 && parses::<jiff::civil::Time>(text);
    "time-zone": r"^[A-Za-z0-9_+/-]+$", "a time zone", "write its name, such as Europe/Zurich or UTC",
        |text| jiff::tz::TimeZone::get(text).is_ok();
    "user-name": r"^[a-z_][a-z0-9_-]{0,31}$", "a user's name", "write a name such as root or debian", is_user;
};

/// The format of that name; none for those of JSON Schema itself (`uint16`).
pub(super) fn find(name: &str) -> Option<&'static Format> {
    ALL.iter().find(|format| format.name == name)
}

/// Whether a text is of a format.
pub(super) fn is(name: &str, text: &str) -> bool {
    find(name).is_some_and(|format| (format.accepts)(text))
}

/// A text from the document as an error may repeat it: short, harmless, and no key.
pub(super) fn shown(text: &str) -> String {
    /// Longer ones are no slip of the finger, and may be what nobody should read in a log.
    const LIMIT: usize = 60;
    let harmless =
        text.chars().count() <= LIMIT && !text.contains(char::is_control) && !text.contains("-----");
    if harmless { format!("{text:?}") } else { "this text".to_owned() }
}

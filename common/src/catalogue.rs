//! Every software under care, one line each: the only list of them.
//!
//! node-agent makes of a line the module that cares for the software, [`crate::metadata::Configuration`] a field if it is
//! a content, and infrop what it drains for and what a document may name.

use std::collections::BTreeSet;

use crate::disruption::Disruption;

/// Calls a macro with all lines, in the order in which a plan changes them.
///
/// A line has the software's name (in annotations with `-` for `_`), what a change does to the pods of its host, and where
/// its version comes from: a [`Source`], a content with its type.
// What others stand on comes first, and Kubernetes in kubeadm's order: kubeadm, images and `kubeadm upgrade`, then
// kubelet and kubectl.
#[macro_export]
macro_rules! for_every_software {
    ($callback:ident) => {
        $callback! {
            /// The host's name and its line in `/etc/hosts`.
            hostname: None, Content(Hostname);
            /// Whether the host may swap.
            swap: None, Content(Swap);
            /// Kernel modules that are loaded, now and at every boot.
            kernel_modules: None, Content(BTreeSet<KernelModule>);
            /// Kernel settings by name.
            #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "format": "sysctl-key" })))]
            sysctl: None, Content(BTreeMap<SysctlKey, SysctlValue>);
            /// The distribution's kernel.
            kernel: Reboot, Named;
            /// `/etc/containerd/config.toml`.
            containerd_config: Restart, Content(String);
            /// Containers outlive its restart, but not every change of its shims.
            containerd: Drain, Named;
            /// Container images, imported ahead of use.
            images: None, Content(Vec<ImageArchive>);
            /// `/etc/keepalived/keepalived.conf`.
            keepalived_config: None, Content(String);
            /// Carries the API's address from control plane to control plane.
            keepalived: Restart, Named;
            /// `/etc/haproxy/haproxy.cfg`.
            haproxy_config: None, Content(String);
            /// Leads calls to API servers that are ready.
            haproxy: Restart, Named;
            /// The tool alone.
            kubeadm: None, Kubernetes;
            /// What kubeadm keeps on a host.
            kubernetes: Drain, Kubernetes;
            /// Drop-ins of the kubelet's unit by file name.
            #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "format": "drop-in-name" })))]
            kubelet_drop_ins: Restart, Content(BTreeMap<DropInName, String>);
            /// Its minors may only change on a drained host.
            kubelet: Drain, Kubernetes;
            /// The tool alone.
            kubectl: None, Kubernetes;
            /// A reboot that somebody asked for.
            reboot: Reboot, Named;
        }
    };
}

/// Where the version of a software comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It is the hash of what was delivered.
    Content,
    /// It is named.
    Named,
    /// It is the cluster's Kubernetes version.
    Kubernetes,
}

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    identifier: &'static str,
    /// What a change does to the pods of its host.
    pub disruption: Disruption,
    /// Where its version comes from.
    pub source: Source,
}

macro_rules! entries {
    ($($(#[$attribute:meta])* $name:ident: $disruption:ident, $source:ident $(($content:ty))?;)*) => {
        /// All lines, in the order in which a plan changes them.
        pub const ENTRIES: &[Entry] = &[
            $(Entry {
                identifier: stringify!($name),
                disruption: Disruption::$disruption,
                source: Source::$source,
            },)*
        ];
    };
}

for_every_software!(entries);

impl Entry {
    /// The software's name in annotations.
    pub fn name(&self) -> String {
        self.identifier.replace('_', "-")
    }

    // Asked for every software of every node by each decision of infrop, so it makes no text.
    fn is(&self, name: &str) -> bool {
        let letters = self.identifier.bytes().map(|letter| if letter == b'_' { b'-' } else { letter });
        letters.eq(name.bytes())
    }
}

/// The line of a software, if there is one.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.is(name))
}

/// The names of software whose versions come from there, in the order of the alphabet.
pub fn names_of(source: Source) -> BTreeSet<String> {
    ENTRIES.iter().filter(|entry| entry.source == source).map(Entry::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::SoftwareName;

    #[test]
    fn every_name_is_good_unique_and_found() {
        let mut names = BTreeSet::new();
        for entry in ENTRIES {
            assert!(entry.name().parse::<SoftwareName>().is_ok(), "{entry:?}");
            assert_eq!(find(&entry.name()), Some(entry));
            assert!(names.insert(entry.name()), "{entry:?}");
        }
        assert_eq!(find("kubelet_drop_ins"), None);
        assert_eq!(find("kube"), None);
    }
}

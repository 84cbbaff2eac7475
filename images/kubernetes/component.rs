//! What a bundle is made of: which programs, from which Go modules, in which releases.

use std::fmt;

use common::KubernetesVersion;

/// The only architecture so far; the names below follow Go's and Debian's, which agree on it.
pub const ARCHITECTURE: &str = "amd64";

/// A part of the bundle with a version of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Component {
    Kubernetes,
    Etcd,
    CoreDns,
    Containerd,
}

/// A program of a component and the Go package it is built from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binary {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

const fn binary(name: &'static str, package: &'static str) -> Binary {
    Binary { name, package }
}

/// A version of a component, for example etcd 3.7.0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) component: Component,
    pub(crate) version: String,
}

impl Component {
    pub(crate) const ALL: [Self; 4] = [Self::Kubernetes, Self::Etcd, Self::CoreDns, Self::Containerd];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Etcd => "etcd",
            Self::CoreDns => "coredns",
            Self::Containerd => "containerd",
        }
    }

    /// Its programs. kubeadm comes first among Kubernetes': it tells the versions of the others, and a
    /// version that does not exist shows before minutes of compiling.
    pub(crate) fn binaries(self) -> &'static [Binary] {
        match self {
            Self::Kubernetes => {
                const {
                    &[
                        binary("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
                        binary("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
                        binary("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
                        binary("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
                        binary("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
                        binary("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
                        binary("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
                    ]
                }
            }
            Self::Etcd => {
                const {
                    &[
                        binary("etcd", "go.etcd.io/etcd/server/v3"),
                        binary("etcdctl", "go.etcd.io/etcd/etcdctl/v3"),
                        binary("etcdutl", "go.etcd.io/etcd/etcdutl/v3"),
                    ]
                }
            }
            Self::CoreDns => const { &[binary("coredns", "github.com/coredns/coredns")] },
            Self::Containerd => {
                const {
                    &[
                        binary("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
                        binary(
                            "containerd-shim-runc-v2",
                            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                        ),
                        binary("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
                    ]
                }
            }
        }
    }

    /// The Go modules that are required by name; the first one's go.mod says which Go is needed.
    pub(crate) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Kubernetes => &["k8s.io/kubernetes"],
            Self::Etcd => {
                &["go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3"]
            }
            Self::CoreDns => &["github.com/coredns/coredns"],
            Self::Containerd => &["github.com/containerd/containerd/v2"],
        }
    }
}

impl Release {
    pub(crate) fn new(component: Component, version: impl Into<String>) -> Self {
        Self { component, version: version.into() }
    }

    /// What the linker writes into the programs, so that they answer `--version` like the published ones.
    pub(crate) fn linker_flags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        let mut set = |variable: &str, value: &str| {
            flags.push_str(" -X ");
            flags.push_str(variable);
            flags.push('=');
            flags.push_str(value);
        };
        match self.component {
            Component::Kubernetes => {
                let mut numbers = self.version.split('.');
                set("k8s.io/component-base/version.gitVersion", &format!("v{}", self.version));
                set("k8s.io/component-base/version.gitMajor", numbers.next().unwrap_or_default());
                set("k8s.io/component-base/version.gitMinor", numbers.next().unwrap_or_default());
            }
            Component::Containerd => {
                set("github.com/containerd/containerd/v2/version.Version", &format!("v{}", self.version));
            }
            // Their sources name the version themselves.
            Component::Etcd | Component::CoreDns => {}
        }
        flags
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.component.name(), self.version)
    }
}

/// The containerd that goes with a Kubernetes version. Two of them, so that an upgrade of Kubernetes is one
/// of containerd, too.
pub fn containerd_for(kubernetes: &KubernetesVersion) -> &'static str {
    if kubernetes.minor() <= 36 { "2.3.3" } else { "2.4.2" }
}

//! Which packages and container images a bundle has, and what is in each.

use std::path::Path;

use super::archive::{Image, ImageFile};
use crate::package::{Package, PackagedFile};

macro_rules! packaged {
    ($name:literal) => {
        include_str!(concat!("packages/", $name))
    };
}

const KUBELET_SERVICE: &str = packaged!("kubelet.service");
const KUBELET_POSTINST: &str = packaged!("kubelet.postinst");
const KUBELET_PRERM: &str = packaged!("kubelet.prerm");
const KUBEADM_DROP_IN: &str = packaged!("10-kubeadm.conf");
const KUBEADM_POSTINST: &str = packaged!("kubeadm.postinst");
const CONTAINERD_SERVICE: &str = packaged!("containerd.service");
const CONTAINERD_POSTINST: &str = packaged!("containerd.postinst");
const CONTAINERD_PRERM: &str = packaged!("containerd.prerm");

/// The source of the pause image's program.
pub(crate) const PAUSE_C: &str = include_str!("pause.c");

/// What kube-proxy calls, as Debian packages.
pub(crate) const KUBE_PROXY_PACKAGES: [&str; 3] = ["conntrack", "iptables", "nftables"];

/// Names under which kube-proxy calls iptables; all of them are one program, in its nftables form because
/// that is what current kernels have.
const IPTABLES_NAMES: [&str; 6] =
    ["iptables", "iptables-restore", "iptables-save", "ip6tables", "ip6tables-restore", "ip6tables-save"];

/// Ours come after the project's own, as in the community's repository.
const REVISION: &str = "1.1";

/// All text that shapes packages and images, as input of the bundle's identity.
pub(crate) fn texts() -> [&'static str; 9] {
    [
        KUBELET_SERVICE,
        KUBELET_POSTINST,
        KUBELET_PRERM,
        KUBEADM_DROP_IN,
        KUBEADM_POSTINST,
        CONTAINERD_SERVICE,
        CONTAINERD_POSTINST,
        CONTAINERD_PRERM,
        PAUSE_C,
    ]
}

/// The packages, from the programs in `bin`.
pub(crate) fn packages(bin: &Path, kubernetes: &str, containerd: &str) -> Vec<Package> {
    let program = |name: &str, to| PackagedFile::Program { from: bin.join(name), to };
    let text = |text, to| PackagedFile::Text { text, to };
    let version = |upstream: &str| format!("{upstream}-{REVISION}");
    vec![
        Package {
            name: "kubelet",
            version: version(kubernetes),
            depends: "conntrack, ethtool, iproute2, iptables, mount, util-linux",
            recommends: "containerd, containernetworking-plugins",
            description: "Kubernetes agent that runs pods on this node",
            files: vec![
                program("kubelet", "/usr/bin/kubelet"),
                text(KUBELET_SERVICE, "/usr/lib/systemd/system/kubelet.service"),
            ],
            postinst: KUBELET_POSTINST,
            prerm: KUBELET_PRERM,
            postrm: "",
        },
        Package {
            name: "kubeadm",
            version: version(kubernetes),
            depends: "kubelet",
            recommends: "kubectl",
            description: "creates, joins and upgrades Kubernetes clusters",
            files: vec![
                program("kubeadm", "/usr/bin/kubeadm"),
                text(KUBEADM_DROP_IN, "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"),
            ],
            postinst: KUBEADM_POSTINST,
            prerm: "",
            postrm: "",
        },
        Package {
            name: "kubectl",
            version: version(kubernetes),
            depends: "",
            recommends: "",
            description: "command line client of Kubernetes",
            files: vec![program("kubectl", "/usr/bin/kubectl")],
            postinst: "",
            prerm: "",
            postrm: "",
        },
        Package {
            name: "containerd",
            version: version(containerd),
            depends: "runc",
            recommends: "",
            description: "container runtime",
            files: vec![
                program("containerd", "/usr/bin/containerd"),
                program("containerd-shim-runc-v2", "/usr/bin/containerd-shim-runc-v2"),
                program("ctr", "/usr/bin/ctr"),
                text(CONTAINERD_SERVICE, "/usr/lib/systemd/system/containerd.service"),
            ],
            postinst: CONTAINERD_POSTINST,
            prerm: CONTAINERD_PRERM,
            postrm: "",
        },
    ]
}

/// The image that kubeadm calls `name`, from the programs in `bin`; none for a name we do not know.
pub(crate) fn image(name: &str, bin: &Path, kube_proxy_base: &Path) -> Option<Image> {
    let component = component_of(name);
    let programs: &[&str] = match component {
        "kube-apiserver" | "kube-controller-manager" | "kube-scheduler" | "kube-proxy" => &[component],
        "etcd" => &["etcd", "etcdctl", "etcdutl"],
        // These two are started by a path in the root, without a command in the pod.
        "coredns" | "pause" => {
            let to = format!("/{component}");
            return Some(Image {
                name: name.to_owned(),
                entrypoint: vec![to.clone()],
                files: vec![ImageFile::Program { from: bin.join(component), to }],
                base: None,
            });
        }
        _ => return None,
    };
    let path = |program: &str| format!("/usr/local/bin/{program}");
    let mut files: Vec<ImageFile> = programs
        .iter()
        .map(|program| ImageFile::Program { from: bin.join(program), to: path(program) })
        .collect();
    let mut base = None;
    if component == "kube-proxy" {
        base = Some(kube_proxy_base.to_owned());
        files.extend(IPTABLES_NAMES.map(|name| ImageFile::Link {
            to: format!("/usr/sbin/{name}"),
            target: "xtables-nft-multi".to_owned(),
        }));
    }
    Some(Image { name: name.to_owned(), entrypoint: vec![path(component)], files, base })
}

/// `coredns` of `registry.k8s.io/coredns/coredns:v1.14.6`.
pub(crate) fn component_of(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// `1.14.6` of `registry.k8s.io/coredns/coredns:v1.14.6`, `3.7.0` of `registry.k8s.io/etcd:3.7.0-0`.
pub(crate) fn version_of(image: &str) -> &str {
    let tag = image.rsplit(':').next().unwrap_or_default();
    tag.strip_prefix('v').unwrap_or(tag).split('-').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_read_from_what_kubeadm_lists() {
        for (image, component, version) in [
            ("registry.k8s.io/kube-apiserver:v1.37.1", "kube-apiserver", "1.37.1"),
            ("registry.k8s.io/coredns/coredns:v1.14.6", "coredns", "1.14.6"),
            ("registry.k8s.io/etcd:3.7.0-0", "etcd", "3.7.0"),
            ("registry.k8s.io/pause:3.10.2", "pause", "3.10.2"),
            ("localhost:5000/pause:3.10", "pause", "3.10"),
        ] {
            assert_eq!((component_of(image), version_of(image)), (component, version));
        }
    }

    #[test]
    fn an_image_nobody_taught_us_is_not_made_up() {
        assert!(image("registry.k8s.io/new-thing:v1", Path::new("bin"), Path::new("base")).is_none());
        let proxy = image("registry.k8s.io/kube-proxy:v1.37.1", Path::new("bin"), Path::new("base")).unwrap();
        assert_eq!(proxy.files.len(), 1 + IPTABLES_NAMES.len());
        assert!(proxy.base.is_some());
    }
}

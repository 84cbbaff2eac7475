//! Container images of Kubernetes.

/// What kubeadm runs on control planes alone, by the names of its images.
const OF_CONTROL_PLANES: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Whether a worker has no use for an image. There are four of these beside three that it runs.
pub fn is_for_control_planes(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or_default();
    let name = name.split([':', '@']).next().unwrap_or_default();
    OF_CONTROL_PLANES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_run_the_proxy_dns_and_pause() {
        for (image, expected) in [
            ("registry.k8s.io/kube-apiserver:v1.37.1", true),
            ("registry.k8s.io/etcd:3.7.0-0", true),
            ("mirror.example:5000/k8s/kube-scheduler@sha256:00", true),
            ("registry.k8s.io/kube-proxy:v1.37.1", false),
            ("registry.k8s.io/coredns/coredns:v1.14.6", false),
            ("registry.k8s.io/pause:3.10.2", false),
            ("example.com/etcd/backup:1", false),
            ("", false),
        ] {
            assert_eq!(is_for_control_planes(image), expected, "{image}");
        }
    }
}

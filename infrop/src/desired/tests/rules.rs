//! One bad document per rule.

use super::{GOOD, expect, problems, read};

#[test]
fn the_good_document_is_good() {
    assert_eq!(problems(GOOD), Vec::<String>::new());
}

#[test]
fn groups() {
    expect(&[
        (
            "  - provider: rack\n",
            "  - provider: rak\n",
            "27:15: cluster.workers[0].provider: there is no provider rak",
        ),
        (
            "pool: worker\n",
            "pool: workr\n",
            "28:11: cluster.workers[0].pool: provider rack has no pool workr",
        ),
        ("pool: worker\n", "pool: zzz\n", "28:11: cluster.workers[0].pool: provider rack has no pool zzz"),
        (
            "    pool: worker\n    nodes: 2\n",
            "    pool: control\n    nodes: 2\n",
            "28:11: cluster.workers[0].pool: pool control is that of cluster.controlPlane already",
        ),
        (
            "    nodes: 2\n",
            "    nodes: 3\n",
            "29:12: cluster.workers[0].nodes: 3 nodes need as many hosts, but pool worker has 2",
        ),
        ("    nodes: 3\n", "    nodes: 2\n", "24:12: cluster.controlPlane.nodes: is 2, not 1, 3 or 5"),
        (
            "  - provider: rack\n    pool: worker\n",
            "  - provider: here\n    pool: spare\n",
            "27:15: cluster.workers[0].provider: hosts of here do not reach those of rack (cluster.controlPlane): a lab is a network without a way out",
        ),
        (
            "effect: NoSchedule }]",
            "effect: NoSchedule }, { key: example.org/x, effect: NoSchedule }]",
            "30:68: cluster.workers[0].taints[1]: example.org/x has this effect already",
        ),
    ]);
}

#[test]
fn rollout() {
    expect(&[
        (
            "name: disk",
            "name: smoke",
            "57:13: rollout.checks[1].name: smoke is the name of rollout.checks[0] already",
        ),
        ("name: disk", "name: Disk", "57:13: rollout.checks[1].name: \"Disk\" is not a name"),
        ("[./smoke.sh, --fast]", "[]", "56:29: rollout.checks[0].command: names no program"),
        (
            "timeoutSeconds: 30",
            "timeoutSeconds: 0",
            "56:67: rollout.checks[0].timeoutSeconds: is 0, not a whole number from 1 to 3600",
        ),
        (", job: smoke-job.yaml", "", "57:5: rollout.checks[1]: has none of `command`, `job`"),
        (
            "job: smoke-job.yaml",
            "job: none.yaml",
            "57:24: rollout.checks[1].job: none.yaml cannot be read: No such file or directory (os error 2)",
        ),
        (
            "job: smoke-job.yaml",
            "job: static.yaml",
            "57:24: rollout.checks[1].job: static.yaml is not a Job of batch/v1",
        ),
        (
            "effect: NoSchedule }]\n",
            "effect: NoSchedule }]\n    rollout: { checks: [{ name: a, command: [''] }] }\n",
            "31:45: cluster.workers[0].rollout.checks[0].command: names no program",
        ),
    ]);
}

#[test]
fn rollouts_of_groups() {
    // Of workers, with and without a number for all, and of control planes.
    let effect = "effect: NoSchedule }]\n";
    let workers = |rollout: &str| format!("{effect}    rollout: {{ {rollout} }}\n");
    let planes = |rollout: &str| format!("labels: {{ example.org/rack: a }}\n    rollout: {{ {rollout} }}\n");
    let good = "soakSeconds: 0, windows: [], drain: { unmanaged: true }, disruption: { x: none }, checks: []";
    for text in [
        GOOD.replace(
            effect,
            &workers(&format!("{good}, order: 3, maxFailed: 1, canary: 1, maxUnavailable: 2")),
        ),
        GOOD.replace(effect, &workers("maxFailed: 3")).replace("maxUnavailable: 1\n", "maxFailed: 3\n"),
        GOOD.replace("labels: { example.org/rack: a }\n", &planes(good)),
    ] {
        assert_eq!(problems(&text), Vec::<String>::new(), "{text}");
    }
    for (rollout, expected) in [
        ("order: -1", "31:23: cluster.workers[0].rollout.order: is -1, not a whole number from 0 to 1000"),
        (
            "order: 1001",
            "31:23: cluster.workers[0].rollout.order: is 1001, not a whole number from 0 to 1000",
        ),
        (
            "maxFailed: 0",
            "31:27: cluster.workers[0].rollout.maxFailed: is 0, not a whole number from 1 to 65535",
        ),
        (
            "maxFailed: 2",
            "31:27: cluster.workers[0].rollout.maxFailed: is 2, but no node at all is begun after 1 failed (rollout.maxFailed)",
        ),
        (
            "soakSeconds: 86401",
            "31:29: cluster.workers[0].rollout.soakSeconds: is 86401, not a whole number from 0 to 86400",
        ),
        (
            "windows: [{ start: x, hours: 1 }]",
            "31:35: cluster.workers[0].rollout.windows[0].start: \"x\" is not a time of day",
        ),
        (
            "drain: { atTimeout: never }",
            "31:36: cluster.workers[0].rollout.drain.atTimeout: is \"never\", not wait, skip or delete",
        ),
        (
            "disruption: { containerd: all }",
            "31:42: cluster.workers[0].rollout.disruption.containerd: is \"all\", not none, restart, drain or reboot",
        ),
        (
            "patienceMinutes: 1",
            "31:16: cluster.workers[0].rollout.patienceMinutes: is no field of this document",
        ),
    ] {
        assert_eq!(problems(&GOOD.replace(effect, &workers(rollout))).join("\n"), expected, "{rollout}");
    }
    // Of those, one goes at a time, before all others.
    for field in ["maxUnavailable", "canary", "order", "maxFailed"] {
        let text = GOOD.replace("labels: { example.org/rack: a }\n", &planes(&format!("{field}: 5")));
        let expected = format!("26:16: cluster.controlPlane.rollout.{field}: is no field of this document");
        assert_eq!(problems(&text), [expected]);
    }
    let text = planes("checks: [{ name: a, job: none.yaml }, { name: a, command: [''] }]");
    assert_eq!(
        problems(&GOOD.replace("labels: { example.org/rack: a }\n", &text)),
        [
            "26:41: cluster.controlPlane.rollout.checks[0].job: none.yaml cannot be read: No such file or directory (os error 2)",
            "26:62: cluster.controlPlane.rollout.checks[1].name: a is the name of cluster.controlPlane.rollout.checks[0] already",
            "26:74: cluster.controlPlane.rollout.checks[1].command: names no program",
        ]
    );
}

#[test]
fn hosts() {
    expect(&[
        (
            "name: w2",
            "name: c1",
            "15:19: providers.rack.static.pools.worker[1].name: c1 is the name of providers.rack.static.pools.control[0] already",
        ),
        (
            "192.0.2.22",
            "192.0.2.11",
            "15:32: providers.rack.static.pools.worker[1].address: 192.0.2.11 is the address of providers.rack.static.pools.control[0] already",
        ),
        (
            "192.0.2.22",
            "127.0.0.1",
            "15:32: providers.rack.static.pools.worker[1].address: 127.0.0.1 is not an address at which other hosts reach this one",
        ),
        (
            "192.0.2.22, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAE]",
            "192.0.2.22",
            "15:11: providers.rack.static.pools.worker[1].hostKeys: nobody can tell whether w2 is the one meant: its host key is not known",
        ),
        (
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAE",
            "AAAAC3NzaC1lZDI1NTE5AAAE",
            "15:55: providers.rack.static.pools.worker[1].hostKeys[0]: this text is not a public host key",
        ),
    ]);
}

#[test]
fn network() {
    expect(&[
        (
            "  endpoint:\n    host: 192.0.2.10\n    port: 6443\n",
            "",
            "21:3: cluster.endpoint: is missing: 3 control planes need an address that leads to all of them",
        ),
        (
            "    host: 192.0.2.10\n",
            "    host: api.example.org\n",
            "32:11: cluster.endpoint.host: api.example.org is not an IP address, so no control plane can carry it",
        ),
        (
            "    host: 192.0.2.10\n",
            "    host: https://api\n",
            "32:11: cluster.endpoint.host: \"https://api\" is not an address or a name in DNS",
        ),
        (
            "    host: 192.0.2.10\n",
            "    host: 192.0.2.12\n",
            "32:11: cluster.endpoint.host: 192.0.2.12 is the address of c2 (providers.rack.static.pools.control[1]), but it has to move between hosts",
        ),
        (
            "    host: 192.0.2.10\n",
            "    host: 10.96.0.1\n",
            "32:11: cluster.endpoint.host: 10.96.0.1 is in serviceSubnet 10.96.0.0/12",
        ),
        (
            "10.96.0.0/12",
            "10.244.128.0/20",
            "36:20: cluster.networking.serviceSubnet: 10.244.128.0/20 overlaps podSubnet 10.244.0.0/16",
        ),
        (
            "10.96.0.0/12",
            "10.0.0.0/11",
            "36:20: cluster.networking.serviceSubnet: 10.0.0.0/11 is not a size that Kubernetes takes: /12 to /28",
        ),
        (
            "10.96.0.0/12",
            "10.96.0.0/30",
            "36:20: cluster.networking.serviceSubnet: 10.96.0.0/30 is not a size that Kubernetes takes: /12 to /28",
        ),
        (
            "10.96.0.0/12",
            "fd00:1::/112",
            "36:20: cluster.networking.serviceSubnet: fd00:1::/112 is IPv6, but podSubnet 10.244.0.0/16 is IPv4",
        ),
        (
            "10.244.0.0/16",
            "10.244.0.0/23",
            "35:16: cluster.networking.podSubnet: 10.244.0.0/23 is too small: each node takes a range /24 of it, and there are 5 nodes",
        ),
        (
            "10.244.0.0/16",
            "32.0.0.0/4",
            "35:16: cluster.networking.podSubnet: 32.0.0.0/4 is too large: Kubernetes takes up to /8",
        ),
        (
            "192.0.2.22",
            "10.244.7.7",
            "15:32: providers.rack.static.pools.worker[1].address: 10.244.7.7 is in podSubnet 10.244.0.0/16",
        ),
        (
            "192.0.2.22",
            "fd00:2::1",
            "15:32: providers.rack.static.pools.worker[1].address: fd00:2::1 is not of the family of podSubnet 10.244.0.0/16",
        ),
        (
            "[lab-network.yaml]",
            "[missing.yaml]",
            "38:17: cluster.networking.manifests[0]: missing.yaml cannot be read: No such file or directory (os error 2)",
        ),
        (
            "[lab-network.yaml]",
            "[../examples]",
            "38:17: cluster.networking.manifests[0]: ../examples is not a file",
        ),
        (
            "  port: 22\n",
            "  port: 22\n  knownHosts: missing\n",
            "52:15: ssh.knownHosts: missing cannot be read: No such file or directory (os error 2)",
        ),
    ]);
}

#[test]
fn a_lab() {
    let lab = GOOD
        .replace("    provider: rack\n", "    provider: here\n")
        .replace("        spare: {}\n", "        control: {}\n        worker: {}\n")
        .replace("  - provider: rack\n", "  - provider: here\n")
        .replace("    host: 192.0.2.10\n", "    host: 10.88.0.5\n");
    assert_eq!(problems(&lab), Vec::<String>::new());
    for (from, to, expected) in [
        (
            "10.88.0.5",
            "10.88.0.1",
            "33:11: cluster.endpoint.host: 10.88.0.1 is not one of the addresses that a lab has free for this",
        ),
        (
            "10.88.0.5",
            "10.88.0.11",
            "33:11: cluster.endpoint.host: 10.88.0.11 is not one of the addresses that a lab has free for this",
        ),
        (
            "10.88.0.5",
            "10.89.0.5",
            "33:11: cluster.endpoint.host: 10.89.0.5 is not one of the addresses that a lab has free for this",
        ),
        (
            "10.244.0.0/16",
            "10.88.0.0/16",
            "33:11: cluster.endpoint.host: 10.88.0.5 is in podSubnet 10.88.0.0/16\n36:16: cluster.networking.podSubnet: 10.88.0.0/16 overlaps the lab's own network 10.88.0.0/24",
        ),
        (
            "    nodes: 2\n",
            "    nodes: 198\n",
            "30:12: cluster.workers[0].nodes: with these there are 201 hosts, but a lab has up to 200",
        ),
    ] {
        assert_eq!(problems(&lab.replacen(from, to, 1)).join("\n"), expected, "{to}");
    }
    let hint = read(&lab.replace("10.88.0.5", "10.88.0.1")).unwrap_err().0.remove(0).hint;
    assert_eq!(hint, "write one from 10.88.0.2 to 10.88.0.10");
    // Its hosts have a bundle and what carries the endpoint without asking.
    let without = lab
        .replace("  bundle: /opt/infrop/bundles/{kubernetes}\n", "")
        .replace(", haproxy: 2.6.12-1, keepalived: 1:2.2.7-1+b2", "");
    assert_eq!(problems(&without), Vec::<String>::new());
}

#[test]
fn kubernetes_steps() {
    let rollout = "  maxUnavailable: 1\n";
    let with = |steps: &str| format!("{rollout}  kubernetesSteps: {steps}\n");
    for (steps, expected) in [
        ("[]", &[][..]),
        ("[1.36.4]", &[]),
        ("[1.34.3, 1.35.2, 1.36.4]", &[]),
        ("[1.36.4, 1.36.5, 1.37.0]", &[]),
        ("[1.36.4, 1.37.1]", &[]),
        (
            "[1.35.2]",
            &[
                "55:21: rollout.kubernetesSteps[0]: 1.37.1, which software.kubernetes says, is more than one minor version above 1.35.2",
            ],
        ),
        (
            "[1.34.3, 1.36.4]",
            &[
                "55:21: rollout.kubernetesSteps[0]: 1.36.4, which comes next, is more than one minor version above 1.34.3",
            ],
        ),
        (
            "[1.36.4, 1.38.0]",
            &["55:29: rollout.kubernetesSteps[1]: 1.38.0 is above 1.37.1, which software.kubernetes says"],
        ),
        (
            "[1.36.4, 1.35.2, 1.36.5]",
            &["55:29: rollout.kubernetesSteps[1]: 1.35.2 comes after 1.36.4, which is not older"],
        ),
        (
            "[1.36.4, 1.36.4]",
            &["55:29: rollout.kubernetesSteps[1]: 1.36.4 comes after 1.36.4, which is not older"],
        ),
        // Only what cannot be read is reported.
        ("[1.34.3, x, 1.36.4]", &["55:29: rollout.kubernetesSteps[1]: \"x\" is not a Kubernetes version"]),
    ] {
        let problems = problems(&GOOD.replace(rollout, &with(steps)));
        let starts = problems.iter().zip(expected).all(|(problem, expected)| problem.starts_with(expected));
        assert!(problems.len() == expected.len() && starts, "{steps}: {problems:#?}");
    }
}

#[test]
fn software() {
    expect(&[
        (
            "1.37.1",
            "1.30.0",
            "42:15: software.kubernetes: 1.30.0 is older than 1.31, the first that infrop can set up",
        ),
        (
            "containerd: 2.4.2",
            "kubelet: 1.36.4",
            "43:15: software.versions.kubelet: has the version that software.kubernetes says, and no other",
        ),
        (
            "containerd: 2.4.2",
            "sysctl: x",
            "43:15: software.versions.sysctl: has no version to be named: it is the hash of its content",
        ),
        (
            "containerd: 2.4.2",
            "contanerd: 2.4.2",
            "43:15: software.versions.contanerd: is no software that node-agent knows",
        ),
        (
            ", keepalived: 1:2.2.7-1+b2",
            "",
            "43:13: software.versions: does not name keepalived, which carries cluster.endpoint from control plane to control plane",
        ),
        (
            "  versions: { containerd: 2.4.2, haproxy: 2.6.12-1, keepalived: 1:2.2.7-1+b2 }\n",
            "",
            "42:3: software.versions: does not name haproxy and keepalived, which carry cluster.endpoint from control plane to control plane",
        ),
        (
            "bundle: /opt",
            "bundle: opt",
            "46:11: software.bundle: opt/infrop/bundles/{kubernetes} is not a path from / on the hosts",
        ),
        (
            "  repositories:\n  - { name: site, uri: 'https://packages.example', suite: ./, keyFile: /etc/site.asc }\n  \
             bundle: /opt/infrop/bundles/{kubernetes}\n",
            "",
            "41:1: software: hosts of static providers have nowhere to get packages from",
        ),
        (
            "https://packages.example",
            "packages.example",
            "45:24: software.repositories[0].uri: is not an address of a repository",
        ),
        (
            "keyFile: /etc/site.asc",
            "keyFile: site.asc",
            "45:72: software.repositories[0].keyFile: site.asc is not a path from / on the hosts",
        ),
        (
            "keyFile: /etc/site.asc",
            "key: abc",
            "45:68: software.repositories[0].key: is not an armoured public key",
        ),
        (
            "keyFile: /etc/site.asc",
            "keyFile: /etc/site.asc, key: abc",
            "45:5: software.repositories[0]: has more than one of `key`, `keyFile`",
        ),
        (
            "  bundle:",
            "  - { name: site, uri: 'file:/x', suite: ./, keyFile: /x }\n  bundle:",
            "46:13: software.repositories[1].name: site is the name of software.repositories[0] already",
        ),
        (
            "    sysctl:",
            "    hostname: { name: a, address: 192.0.2.1 }\n    sysctl:",
            "48:5: software.configuration.hostname: is each host's own, so one for all cannot be right",
        ),
        (
            "    sysctl:",
            "    keepalived-config: x\n    sysctl:",
            "48:5: software.configuration.keepalived-config: is written by infrop, because the control planes carry cluster.endpoint",
        ),
        (
            "vm.max_map_count: '262144'",
            "vm.max_map_count: 262144",
            "48:33: software.configuration.sysctl[\"vm.max_map_count\"]: is a number, not a text",
        ),
        (
            "vm.max_map_count: '262144'",
            "'../x': '1'",
            "48:15: software.configuration.sysctl[\"../x\"]: \"../x\" is not a kernel setting's name",
        ),
        (
            "{ maxPods: 50 }",
            "{ kind: KubeletConfiguration }",
            "39:14: cluster.kubelet.kind: is written by infrop",
        ),
    ]);
}

/// What is wrong in one place does not hide what is wrong in another.
#[test]
fn all_problems_at_once() {
    let mut text = GOOD.to_owned();
    for (from, to) in [
        ("kind: Infrastructure", "kind: Infra"),
        ("  name: site\n", "  name: site\n  extra: 1\n"),
        ("192.0.2.12", "192.0.2.11"),
        ("name: w2", "name: w_2"),
        ("pool: control\n    nodes: 3\n", "pool: contrl\n    nodes: 4\n"),
        ("pool: worker\n    nodes: 2\n", "pool: worker\n    nodes: 3\n"),
        ("192.0.2.10", "10.244.0.1"),
        ("10.96.0.0/12", "10.244.0.0/16"),
        ("[lab-network.yaml]", "[a.yaml, b.yaml]"),
        ("1.37.1", "1.37.x"),
        ("containerd: 2.4.2,", "containerd: 2.4.2, kubeadm: 1.37.1,"),
        ("{ environment: INFROP_SSH_KEY }", "key"),
        ("  port: 22\n", "  port: 22\n  port: 23\n"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    assert_eq!(
        problems(&text),
        [
            "2:7: kind: is \"Infra\", not Infrastructure",
            "5:3: metadata.extra: is no field of this document",
            "12:32: providers.rack.static.pools.control[1].address: 192.0.2.11 is the address of providers.rack.static.pools.control[0] already",
            "16:19: providers.rack.static.pools.worker[1].name: \"w_2\" is not a node's name",
            "24:11: cluster.controlPlane.pool: provider rack has no pool contrl",
            "25:12: cluster.controlPlane.nodes: is 4, not 1, 3 or 5",
            "30:12: cluster.workers[0].nodes: 3 nodes need as many hosts, but pool worker has 2",
            "33:11: cluster.endpoint.host: 10.244.0.1 is in podSubnet 10.244.0.0/16",
            "33:11: cluster.endpoint.host: 10.244.0.1 is in serviceSubnet 10.244.0.0/16",
            "37:20: cluster.networking.serviceSubnet: 10.244.0.0/16 overlaps podSubnet 10.244.0.0/16",
            "39:17: cluster.networking.manifests[0]: a.yaml cannot be read: No such file or directory (os error 2)",
            "39:25: cluster.networking.manifests[1]: b.yaml cannot be read: No such file or directory (os error 2)",
            "43:15: software.kubernetes: \"1.37.x\" is not a Kubernetes version",
            "44:34: software.versions.kubeadm: has the version that software.kubernetes says, and no other",
            "53:3: ssh.port: stands here a second time, after line 52",
            "54:15: ssh.privateKey: is a text, not a map of fields"
        ]
    );
}

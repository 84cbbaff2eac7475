//! YAML, fields and texts: one bad document for each that can be wrong.

use super::{GOOD, expect, problems, read};
use crate::desired::{Problems, formats, read as read_file, read_from};

#[test]
fn fields() {
    expect(&[
        ("  name: site\n", "  name: site\n  nam: x\n", "5:3: metadata.nam: is no field of this document"),
        ("  name: site\n", "  name: Site\n", "4:9: metadata.name: \"Site\" is not a name"),
        (
            "  name: site\n",
            "  title: site\n",
            "4:3: metadata.title: is no field of this document\n4:3: metadata.name: is missing",
        ),
        ("metadata:\n  name: site\n", "metadata:\n", "3:1: metadata: is empty, not a map of fields"),
        ("infrop.caos.ch/v1alpha1", "v1", "1:13: apiVersion: is \"v1\", not infrop.caos.ch/v1alpha1"),
        (
            "    nodes: 2\n",
            "    nodes: two\n",
            "29:12: cluster.workers[0].nodes: is a text, not a whole number",
        ),
        (
            "    nodes: 2\n",
            "    nodes: -1\n",
            "29:12: cluster.workers[0].nodes: is -1, not a whole number from 0 to 65535",
        ),
        (
            "    nodes: 2\n",
            "    nodes: 1.5\n",
            "29:12: cluster.workers[0].nodes: is 1.5, not a whole number from 0 to 65535",
        ),
        ("    nodes: 2\n", "", "27:5: cluster.workers[0].nodes: is missing"),
        (
            "    port: 6443\n",
            "    port: 0\n",
            "33:11: cluster.endpoint.port: is 0, not a whole number from 1 to 65535",
        ),
        ("  port: 22\n", "  port: 65536\n", "51:9: ssh.port: is 65536, not a whole number from 1 to 65535"),
    ]);
}

#[test]
fn texts() {
    expect(&[
        (
            "containerd: 2.4.2",
            "containerd: 2.10",
            "43:27: software.versions.containerd: is a number, not a text",
        ),
        ("1.37.1", "1.37", "42:15: software.kubernetes: \"1.37\" is not a Kubernetes version"),
        ("1.37.1", "1.37.1-rc.1", "42:15: software.kubernetes: \"1.37.1-rc.1\" is not a Kubernetes version"),
        (
            "manifests: [lab-network.yaml]",
            "manifests: lab-network.yaml",
            "38:16: cluster.networking.manifests: is a text, not a list",
        ),
        (
            "NoSchedule",
            "noschedule",
            "30:54: cluster.workers[0].taints[0].effect: is \"noschedule\", not NoSchedule, PreferNoSchedule or NoExecute",
        ),
        (
            "192.0.2.21",
            "192.0.2.321",
            "14:32: providers.rack.static.pools.worker[0].address: \"192.0.2.321\" is not an IP address",
        ),
        (
            "10.244.0.0/16",
            "10.244.0.1/16",
            "35:16: cluster.networking.podSubnet: \"10.244.0.1/16\" is not a range of addresses",
        ),
        (
            "10.244.0.0/16",
            "10.244.0.0",
            "35:16: cluster.networking.podSubnet: \"10.244.0.0\" is not a range of addresses",
        ),
        (
            "{ example.org/rack: a }",
            "{ -rack: a }",
            "25:15: cluster.controlPlane.labels.-rack: \"-rack\" is not a key of a label or taint",
        ),
        (
            "{ example.org/rack: a }",
            "{ rack: a b }",
            "25:21: cluster.controlPlane.labels.rack: \"a b\" is not a value of a label or taint",
        ),
        (
            "{ example.org/rack: a }",
            "{ rack: true }",
            "25:21: cluster.controlPlane.labels.rack: is a boolean, not a text",
        ),
        (
            "key: example.org/x",
            "key: example.org/x/y",
            "30:21: cluster.workers[0].taints[0].key: \"example.org/x/y\" is not a key of a label or taint",
        ),
        (
            "    lab:\n      pools:\n        spare: {}\n",
            "    lap: {}\n",
            "17:5: providers.here.lap: is no field of this document\n17:5: providers.here: has none of `lab`, `static`",
        ),
        (
            "  user: debian\n",
            "  user: -oProxyCommand=x\n",
            "50:9: ssh.user: \"-oProxyCommand=x\" is not a user's name",
        ),
        ("cluster.local", "-x", "37:16: cluster.networking.dnsDomain: \"-x\" is not a name as in DNS"),
        (
            "maxUnavailable: 1",
            "maxUnavailable: 0",
            "54:19: rollout.maxUnavailable: is 0, not a whole number from 1 to 65535",
        ),
        (
            "suite: ./, keyFile: /etc/site.asc",
            "suite: ./",
            "45:5: software.repositories[0]: has none of `key`, `keyFile`",
        ),
        (
            "[api.example.org]",
            "['https://api.example.org']",
            "40:22: cluster.certificateNames[0]: \"https://api.example.org\" is not an address or a name in DNS",
        ),
    ]);
}

#[test]
fn yaml() {
    expect(&[
        (
            "kind: Infrastructure\n",
            "kind: Infrastructure\nkind: Infrastructure\n",
            "3:1: kind: stands here a second time, after line 2",
        ),
        (
            "    port: 6443\n",
            "    port: 6443\n    port: 6444\n",
            "34:5: cluster.endpoint.port: stands here a second time, after line 33",
        ),
        ("metadata:\n", "metadata: !x\n", "3:11: metadata: has a YAML tag"),
        ("metadata:\n", "[a]: b\nmetadata:\n", "3:1: has a key that is not a text"),
        ("rollout:\n", "---\nrollout:\n", "53:1: a second document begins here"),
        ("  user: debian\n", "  user: 'debian\n", "50:9: is not YAML: invalid indentation in quoted scalar"),
        (
            "  name: site\n",
            "  name: site\n\tx: y\n",
            "4:9: is not YAML: while scanning a plain scalar, found a tab",
        ),
        (
            "  kubelet: { maxPods: 50 }\n",
            "  kubelet: &a { x: *a }\n",
            "39:20: cluster.kubelet.x: contains itself",
        ),
    ]);
    assert_eq!(problems(""), ["1:1: is empty"]);
    assert_eq!(problems("# nothing\n"), ["1:1: is empty"]);
    assert_eq!(problems("---\n"), ["2:1: is empty"]);
    assert_eq!(problems("- a\n"), ["1:1: is a list, not a map of fields"]);
    let deep = format!("kind: {}", "[".repeat(10_000));
    assert_eq!(problems(&deep), ["1:262: is not YAML: recursion limit exceeded"]);
}

#[test]
fn an_alias_is_what_it_stands_for() {
    let text = GOOD
        .replace("labels: { example.org/rack: a }", "labels: &labels { example.org/rack: a }")
        .replace("    taints:", "    labels: *labels\n    taints:");
    let document = read(&text).unwrap();
    assert_eq!(document.cluster.workers[0].labels, document.cluster.control_plane.labels);
    let wrong = text.replace("rack: a }", "rack: a b }");
    assert_eq!(
        problems(&wrong),
        [
            "25:41: cluster.controlPlane.labels[\"example.org/rack\"]: \"a b\" is not a value of a label or taint",
            "25:41: cluster.workers[0].labels[\"example.org/rack\"]: \"a b\" is not a value of a label or taint"
        ]
    );
}

#[test]
fn secrets_are_never_repeated() {
    const SECRET: &str = "hunter2-hunter2";
    let reference = "{ environment: INFROP_SSH_KEY }";
    for (to, expected) in [
        (SECRET.to_owned(), "52:15: ssh.privateKey: is a text, not a map of fields"),
        (
            format!("{{ environment: {SECRET} }}"),
            "52:30: ssh.privateKey.environment: this text is not the name of an environment variable",
        ),
        (
            format!("|\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    {SECRET}\n"),
            "53:5: ssh.privateKey: is a text, not a map of fields",
        ),
        (
            format!("{{ file: \"-----BEGIN {SECRET}\" }}"),
            "52:23: ssh.privateKey.file: this text is not a path of a file",
        ),
        (
            format!("{{ value: {SECRET} }}"),
            "52:15: ssh.privateKey: has none of `file`, `environment`, `secret`\n52:17: ssh.privateKey.value: is no field of this document",
        ),
        (format!("[{SECRET}]"), "52:15: ssh.privateKey: is a list, not a map of fields"),
        (
            format!("{{ file: x, environment: {SECRET}_ }}"),
            "52:15: ssh.privateKey: has more than one of `file`, `environment`, `secret`\n52:39: ssh.privateKey.environment: this text is not the name of an environment variable",
        ),
        (
            format!("{{ secret: {{ namespace: x, name: y, key: '{SECRET} ' }} }}"),
            "52:55: ssh.privateKey.secret.key: this text is not a key of a Secret",
        ),
    ] {
        let text = GOOD.replacen(reference, &to, 1);
        assert_ne!(text, GOOD);
        let all = read(&text).unwrap_err().to_string();
        assert!(!all.contains(SECRET), "{all}");
        assert_eq!(problems(&text).join("\n"), expected, "{to}");
    }
    let host_key = GOOD.replacen("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAE", SECRET, 1);
    assert!(!read(&host_key).unwrap_err().to_string().contains(SECRET));
    assert_eq!(formats::shown(&"x".repeat(100)), "this text");
    assert_eq!(formats::shown("-----BEGIN"), "this text");
}

#[test]
fn files_that_are_no_documents() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.yaml");
    let problem = |result: Result<_, Problems>| {
        let Problems(problems) = result.map(|_: crate::desired::Infrastructure| ()).unwrap_err();
        assert_eq!((problems.len(), problems[0].line), (1, None));
        problems[0].problem.clone()
    };
    assert!(problem(read_file(&path)).starts_with("cannot be read: No such file"));
    assert!(problem(read_file(directory.path())).starts_with("cannot be read: Is a directory"));
    assert_eq!(problem(read_from(&b"a: \xff"[..], &path)), "is not text in UTF-8");
    let large = vec![b'#'; 5 << 20];
    assert!(problem(read_from(large.as_slice(), &path)).starts_with("is larger than"));
}

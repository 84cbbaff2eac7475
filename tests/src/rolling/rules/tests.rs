use serde_json::{Value, json};

use super::*;

const PLANES: [&str; 3] = ["cp-1", "cp-2", "cp-3"];
const ALL: [&str; 6] = ["cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3"];

const OLD: &str = "v1.9.4";
/// As a text it is less than the one before.
const NEW: &str = "v1.10.1";

fn rules() -> Rules<'static> {
    Rules {
        limit: 2,
        foreign: Some("w-3"),
        version: NEW.parse().unwrap(),
        control_planes: &PLANES,
        expected: &ALL,
    }
}

/// A Node as it may be written.
#[derive(Debug, Clone, Copy)]
struct N {
    name: &'static str,
    permit: bool,
    permitted: Option<&'static str>,
    plan: Option<&'static str>,
    observed: Option<&'static str>,
    phase: &'static str,
    kubelet: &'static str,
    ready: &'static str,
    cordoned: bool,
    mark: bool,
}

/// One that has its version, or not, and that nothing is done with.
fn still(name: &'static str, kubelet: &'static str) -> N {
    N {
        name,
        permit: false,
        permitted: None,
        plan: Some("p"),
        observed: Some("p"),
        phase: "Idle",
        kubelet,
        ready: "True",
        cordoned: name == "w-3",
        mark: false,
    }
}

impl N {
    fn by(self, user: &str) -> Write {
        let mut annotations = json!({ CHANGES_ALLOWED: self.permit.to_string() });
        let mut set = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                annotations[key] = json!(value);
            }
        };
        set(PERMITTED_PLAN, self.permitted.map(str::to_owned));
        set(PLAN, self.plan.map(str::to_owned));
        set(PLAN_OBSERVED, self.observed.map(str::to_owned));
        set(CORDONED_BY, self.mark.then(|| "rollout/p".to_owned()));
        let state = json!({
            "phase": self.phase, "reason": "UpToDate", "message": "", "since": "2026-11-16T00:00:00Z",
            "attempt": 0, "bootId": "", "agentVersion": "",
        });
        set(STATE, Some(state.to_string()));
        let role = "node-role.kubernetes.io/control-plane";
        let labels = if self.name.starts_with("cp-") { json!({ role: "" }) } else { json!({}) };
        let mut node =
            json!({ "metadata": { "name": self.name, "labels": labels, "annotations": annotations } });
        // As the API server answers an agent.
        if !user.starts_with("system:node:") || self.phase == "Idle" {
            node["spec"] = json!({ "unschedulable": self.cordoned });
            node["status"] = json!({
                "conditions": [{ "type": "Ready", "status": self.ready }],
                "nodeInfo": {
                    "kubeletVersion": self.kubelet, "architecture": "", "bootID": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            });
        }
        let object = Object::Node(serde_json::from_value(node).unwrap());
        Write { user: user.to_owned(), time: "2026-11-16T00:00:00Z".parse().unwrap(), object }
    }

    fn written(self) -> Write {
        self.by("infrop")
    }
}

fn pod(name: &str, ready: &str, image: &str) -> Write {
    let pod: Value = json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "one", "image": format!("example.org/one:{image}") }] },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    });
    let object = Object::Pod(serde_json::from_value(pod).unwrap());
    Write { user: "kubelet".to_owned(), time: "2026-11-16T00:00:00Z".parse().unwrap(), object }
}

fn etcd(plane: &str, ready: &str) -> Write {
    pod(&format!("etcd-{plane}"), ready, "3.6.0-0")
}

fn server(plane: &str, version: &str) -> Write {
    pod(&format!("kube-apiserver-{plane}"), "True", version)
}

fn beginning() -> Vec<Write> {
    let nodes = ALL.map(|name| N { plan: None, observed: None, ..still(name, OLD) }.written());
    let pods = PLANES.iter().flat_map(|plane| [etcd(plane, "True"), server(plane, OLD)]);
    nodes.into_iter().chain(pods).collect()
}

/// What infrop makes of a node before its agent may begin.
fn permitted(name: &'static str) -> N {
    N {
        permit: true,
        permitted: Some(""),
        plan: Some("before"),
        observed: Some("before"),
        phase: "Waiting",
        ..still(name, OLD)
    }
}

fn begun(name: &'static str) -> N {
    N {
        permitted: Some("p"),
        plan: Some("p"),
        observed: Some("p"),
        phase: "Changing",
        cordoned: true,
        mark: name != "w-3",
        ..permitted(name)
    }
}

/// A node from its permit to its end.
fn through(name: &'static str) -> Vec<Write> {
    let agent = format!("system:node:{name}");
    let (permitted, begun) = (permitted(name), begun(name));
    let mut writes = vec![
        permitted.written(),
        N { cordoned: true, mark: begun.mark, ..permitted }.written(),
        N { phase: "Waiting", observed: Some("before"), ..begun }.written(),
        begun.by(&agent),
    ];
    if name.starts_with("cp-") {
        writes.extend([etcd(name, "False"), etcd(name, "True"), server(name, NEW)]);
    }
    writes.extend([
        N { ready: "False", ..begun }.written(),
        N { phase: "Rebooting", ..begun }.by(&agent),
        N { phase: "Verifying", kubelet: NEW, ..begun }.written(),
        N { permit: true, permitted: Some("p"), ..still(name, NEW) }.written(),
        still(name, NEW).written(),
    ]);
    writes
}

fn whole() -> Vec<Write> {
    ALL.iter().flat_map(|name| through(name)).collect()
}

fn planes() -> Vec<Write> {
    PLANES.iter().flat_map(|name| through(name)).collect()
}

fn check(more: impl IntoIterator<Item = Write>) -> anyhow::Result<usize> {
    rules().check(&beginning().into_iter().chain(more).collect::<Vec<_>>())
}

/// This rule and no other.
#[track_caller]
fn breaks(rule: &str, more: impl IntoIterator<Item = Write>) {
    let error = format!("{:#}", check(more).unwrap_err());
    let told = (1..=8).map(|number| format!("I{number}")).filter(|one| error.contains(&format!("{one}: ")));
    assert_eq!(told.collect::<Vec<_>>(), [rule], "{error}");
}

#[test]
fn a_rollout_as_it_should_be_breaks_none() {
    let writes = beginning().len() + whole().len();
    assert_eq!(check(whole()).unwrap(), writes);
    // Two at once, of which one is a person's.
    let mut workers = [through("w-3"), through("w-1")];
    let late = workers[1].split_off(4);
    let two = workers.into_iter().flatten().chain(late).chain(through("w-2"));
    assert_eq!(check(planes().into_iter().chain(two)).unwrap(), writes);
}

#[test]
fn nodes_that_are_away_for_any_reason_count() {
    let unready = N { ready: "Unknown", ..still("w-2", OLD) };
    let cordoned = N { cordoned: true, ..still("w-2", OLD) };
    let working = N { phase: "Verifying", ..still("w-2", OLD) };
    for other in [permitted("w-2"), unready, cordoned, working] {
        // Beside w-3, which a person cordoned.
        breaks("I1", planes().into_iter().chain([other.written(), permitted("w-1").written()]));
        let plane = |node: N| N { name: "cp-2", ..node }.written();
        breaks("I2", [plane(other), permitted("cp-1").written()]);
    }
    // A permit that was withdrawn does not end what an agent is in the middle of.
    let left = N { permit: false, ..begun("cp-1") };
    let agent = "system:node:cp-1";
    breaks(
        "I2",
        [permitted("cp-1").written(), begun("cp-1").by(agent), left.written(), permitted("cp-2").written()],
    );
    // What is under way counts at every write, not at permits alone.
    let mut writes = planes();
    writes.extend(through("w-1").into_iter().take(4));
    writes.push(begun("w-3").written());
    breaks("I4", writes.clone());
    writes.pop();
    writes.extend([permitted("w-3").written(), N { phase: "Changing", ..still("w-2", OLD) }.written()]);
    breaks("I1", writes);
}

#[test]
fn every_etcd_has_to_be_known_and_ready() {
    for state in ["False", "Unknown"] {
        breaks("I3", [etcd("cp-3", state), permitted("cp-1").written()]);
    }
    let unseen = beginning().into_iter().filter(|write| match &write.object {
        Object::Pod(pod) => pod.name_any() != "etcd-cp-2",
        Object::Node(_) => true,
    });
    let writes: Vec<Write> = unseen.chain(whole()).collect();
    let error = format!("{:#}", rules().check(&writes).unwrap_err());
    assert!(error.contains("I3: cp-1") && error.contains("cp-2"), "{error}");
}

#[test]
fn agents_begin_with_a_permit_for_their_plan() {
    let agent = "system:node:cp-1";
    let before = [permitted("cp-1").written()];
    for (user, wrong) in [
        (agent, N { permit: false, ..begun("cp-1") }),
        ("someone", begun("cp-1")),
        // infrop has not written the plan yet: the permit is for none.
        (agent, N { permitted: Some(""), plan: Some("before"), observed: Some("before"), ..begun("cp-1") }),
        (agent, N { permitted: None, ..begun("cp-1") }),
        (agent, N { permitted: Some("other"), ..begun("cp-1") }),
        (agent, N { observed: Some("before"), ..begun("cp-1") }),
        (agent, N { permitted: None, plan: None, observed: None, ..begun("cp-1") }),
        (agent, N { phase: "Rebooting", permitted: Some(""), ..begun("cp-1") }),
    ] {
        breaks("I4", before.iter().cloned().chain([wrong.by(user)]));
    }
    breaks("I4", [server("cp-1", NEW), still("cp-1", NEW).written()]);
}

#[test]
fn a_foreign_cordon_is_kept() {
    breaks("I5", [N { cordoned: false, ..still("w-3", OLD) }.written()]);
    breaks("I5", [N { mark: true, ..still("w-3", OLD) }.written()]);
    // One of ours is not.
    breaks("I5", whole().into_iter().chain([N { cordoned: true, ..still("w-1", NEW) }.written()]));
}

#[test]
fn control_planes_go_first() {
    breaks("I6", [permitted("w-1").written()]);
    let two = ["cp-1", "cp-2"].iter().flat_map(|name| through(name));
    breaks("I6", two.chain([permitted("w-1").written()]));
    for last in [N { permit: true, ..still("cp-3", NEW) }, N { mark: true, ..still("cp-3", NEW) }] {
        breaks("I6", planes().into_iter().chain([last.written(), permitted("w-1").written()]));
    }
}

#[test]
fn versions_are_compared_as_versions() {
    // Its API server is not there yet.
    let new = |name| N { kubelet: NEW, ..permitted(name) }.written();
    breaks("I7", [permitted("cp-1").written(), new("cp-1")]);
    // One minor at a time, and never back.
    let far = N { kubelet: "v1.11.0", ..permitted("cp-1") }.written();
    breaks("I7", [server("cp-1", NEW), permitted("cp-1").written(), far]);
    let back = N { kubelet: "v1.9.3", ..permitted("cp-1") }.written();
    breaks("I7", [permitted("cp-1").written(), back]);
    breaks("I7", [server("cp-1", "v1.11.0")]);
    breaks("I7", [server("cp-1", "v1.9.3")]);
    // The API server of cp-2 never came.
    let late = || {
        planes().into_iter().map(|write| match &write.object {
            Object::Pod(pod) if pod.name_any() == "kube-apiserver-cp-2" => server("cp-1", NEW),
            _ => write,
        })
    };
    breaks("I7", late());
    // A worker has all API servers to speak with.
    let mut one = rules();
    one.control_planes = &PLANES[..1];
    let mut writes = beginning();
    writes.extend(through("cp-1"));
    writes.extend([permitted("w-1").written(), N { kubelet: "v1.10.2", ..permitted("w-1") }.written()]);
    let error = format!("{:#}", one.check(&writes).unwrap_err());
    assert!(error.contains("I7: the kubelet of w-1 and cp-1"), "{error}");
}

#[test]
fn the_end_is_the_end_and_something_happened() {
    let tail = |node: N| whole().into_iter().chain([node.written()]);
    breaks("I8", tail(N { permit: true, ..still("w-2", NEW) }));
    breaks("I8", tail(N { mark: true, ..still("w-2", NEW) }));
    breaks(
        "I8",
        planes().into_iter().chain(through("w-1")).chain(through("w-2")).chain(
            // Nothing was wrong with it, and it never came to its version.
            through("w-3").into_iter().map(|write| match write.object {
                Object::Node(mut node) => {
                    if let Some(info) = node.status.as_mut().and_then(|status| status.node_info.as_mut()) {
                        OLD.clone_into(&mut info.kubelet_version);
                    }
                    Write { object: Object::Node(node), ..write }
                }
                Object::Pod(_) => write,
            }),
        ),
    );
    let error = |writes: Vec<Write>| format!("{:#}", rules().check(&writes).unwrap_err());
    assert!(error(Vec::new()).contains("nothing was written of cp-1"));
    let done: Vec<Write> = ALL.iter().map(|name| still(name, NEW).written()).collect();
    assert!(error(done).contains("cp-1 never had a permit"));
    let unbegun = whole().into_iter().filter(|write| write.user != "system:node:w-2");
    let unbegun = unbegun.filter(|write| match &write.object {
        Object::Node(node) => node.name_any() != "w-2" || !node.annotations()[STATE].contains("Changing"),
        Object::Pod(_) => true,
    });
    assert!(error(beginning().into_iter().chain(unbegun).collect()).contains("the agent of w-2 never began"));
}

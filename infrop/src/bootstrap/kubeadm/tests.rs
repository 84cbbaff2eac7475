//! The scripts, run here with functions in the place of programs, which only write down how they were called.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use super::*;

/// A host with marks, a unit in some state, and a log of calls.
struct Host {
    directory: TempDir,
    /// What stands for its programs.
    programs: String,
}

impl Host {
    fn new(marks: &[&str], unit: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["lib/kubeadm", "run"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        for mark in marks {
            fs::write(directory.path().join("lib/kubeadm").join(mark), "init\n").unwrap();
        }
        let (active, sub) = unit.split_once(' ').unwrap();
        let log = directory.path().join("calls");
        let log = log.display();
        let programs = format!(
            "systemctl() {{\n  \
             if test \"$1\" != show; then echo \"systemctl $*\" >> {log}; return; fi\n  \
             for word; do case $word in *=ActiveState) echo {active} ;; *=SubState) echo {sub} ;; esac; done\n}}\n\
             kubeadm() {{ echo \"kubeadm $1\" >> {log}; }}\n\
             systemd-run() {{ echo \"systemd-run $1\" >> {log}; }}\n\
             sync() {{ true; }}"
        );
        Self { directory, programs }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a script as a host does, with its paths below this one's.
    fn run(&self, script: &str) -> Output {
        let root = self.directory.path().display();
        let script = script
            .replace("/var/lib/infrop", &format!("{root}/lib"))
            .replace("/run/infrop", &format!("{root}/run"))
            .replace("/etc/kubernetes", &format!("{root}/etc"))
            .replace("/var/lib/etcd", &format!("{root}/etcd"));
        let mut bash = Command::new("bash")
            .args(["-seuo", "pipefail"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = bash.stdin.take().unwrap();
        let text = format!("{{\n{}\n{script}\nexit 0\n}}\nconfig\n", self.programs);
        // A script that ends early does not read it.
        let _ = stdin.write_all(text.as_bytes());
        drop(stdin);
        bash.wait_with_output().unwrap()
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    fn has(&self, mark: &str) -> bool {
        self.path("lib/kubeadm").join(mark).exists()
    }
}

#[test]
fn kubeadm_is_started_where_it_was_never_begun() {
    for unit in ["inactive dead", "failed failed", "active exited"] {
        let host = Host::new(&[], unit);
        let output = host.run(&start_script(Verb::Init));
        assert!(output.status.success(), "{output:?}");
        assert!(host.calls().ends_with("systemd-run --quiet\n"), "{unit}: {}", host.calls());
        assert!(host.has("begun") && !host.has("done"));
        assert_eq!(fs::read_to_string(host.path("run/kubeadm.yaml")).unwrap(), "config\n");
    }
}

#[test]
fn kubeadm_is_never_started_where_it_was_begun() {
    for (marks, unit) in [
        (&["begun", "done"][..], "active exited"),
        (&["begun", "done"], "inactive dead"),
        (&["done"], "inactive dead"),
        (&["begun"], "active running"),
        (&["begun"], "activating start"),
        (&["begun"], "deactivating stop-post"),
        (&[], "active running"),
        // What it left is removed first, by a reset.
        (&["begun"], "failed failed"),
        (&["begun"], "inactive dead"),
    ] {
        for verb in [Verb::Init, Verb::Join] {
            let host = Host::new(marks, unit);
            let output = host.run(&start_script(verb));
            assert!(output.status.success(), "{output:?}");
            assert_eq!(host.calls(), "", "{marks:?} {unit}");
            for mark in ["begun", "done"] {
                assert_eq!(host.has(mark), marks.contains(&mark), "{marks:?} {unit}: {mark}");
            }
            assert!(!host.path("run/kubeadm.yaml").exists(), "{marks:?} {unit}");
        }
    }
}

#[test]
fn a_start_is_one_after_the_other() {
    let host = Host::new(&[], "inactive dead");
    let both = std::thread::scope(|scope| {
        let starts = [(), ()].map(|()| scope.spawn(|| host.run(&start_script(Verb::Init))));
        starts.map(|start| start.join().unwrap())
    });
    assert!(both.iter().all(|output| output.status.success()), "{both:?}");
    assert_eq!(host.calls().matches("systemd-run").count(), 1, "{}", host.calls());
}

#[test]
fn what_failed_is_reset_unless_it_has_not_failed_after_all() {
    let failed = || KubeadmState::Failed("why".into());
    for (state, marks, unit, resets) in [
        (failed(), &["begun"][..], "failed failed", true),
        (failed(), &["begun"], "inactive dead", true),
        (failed(), &["begun", "done"], "active exited", false),
        (failed(), &["begun"], "active running", false),
        // A node that is removed.
        (KubeadmState::Done, &["begun", "done"], "active exited", true),
        (KubeadmState::Running, &["begun"], "active running", true),
    ] {
        let host = Host::new(marks, unit);
        let output = host.run(&reset_script(&state));
        assert_eq!(output.status.success(), resets, "{state:?} {marks:?} {unit}: {output:?}");
        assert_eq!(host.calls().contains("kubeadm reset"), resets, "{state:?} {marks:?} {unit}");
        assert_eq!(host.has("begun"), !resets, "{state:?} {marks:?} {unit}");
        assert_eq!(host.has("done"), !resets && marks.contains(&"done"), "{state:?} {marks:?} {unit}");
    }
}

//! A host as its supervisor sees it: what a boot makes, and how it ends.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::Program;
use tokio::{
    process::{Child, Command},
    sync::mpsc,
};

use super::{
    boot::arguments,
    cgroup,
    control::{HostStatus, Power, Request},
    error::{At, Error, chain},
    model::{Definition, Host},
    paths::Paths,
    serve::{Event, Reply},
};

pub(super) struct Machine {
    host: Host,
    /// The nspawn process, while it runs.
    pid: Option<Pid>,
    boots: u32,
    /// The number of its last boot among all boots of the lab.
    turn: u64,
    cgroups: Vec<PathBuf>,
    mounted: bool,
    /// Whether it goes for good when it is off.
    pub(super) removing: bool,
    /// Who waits for it to be off or gone; not empty means that it is not booted again.
    pub(super) waiting: Vec<Reply>,
    /// What is asked of it after that.
    pub(super) deferred: Vec<(Request, Reply)>,
}

impl Machine {
    pub(super) fn new(host: Host) -> Self {
        Self {
            host,
            pid: None,
            boots: 0,
            turn: 0,
            cgroups: Vec::new(),
            mounted: false,
            removing: false,
            waiting: Vec::new(),
            deferred: Vec::new(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.pid.is_some()
    }

    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    pub(super) fn status(&self) -> HostStatus {
        let Host { name, address, host_key } = self.host.clone();
        HostStatus { name, address, host_key, running: self.is_running(), boots: self.boots }
    }

    /// Whether a request has to wait: what is about to go off cannot be switched on, and what is about to go
    /// cannot be anything.
    pub(super) fn defers(&self, request: &Request) -> bool {
        let on = matches!(request, Request::Add { .. } | Request::Power { power: Power::On, .. });
        self.removing || (on && !self.waiting.is_empty())
    }

    /// Boots it; if that fails, nothing of the attempt stays, and its console says why.
    pub(super) async fn boot(
        &mut self,
        turn: u64,
        lab: &Definition,
        paths: &Paths,
        events: &mpsc::UnboundedSender<Event>,
    ) -> Result<(), Error> {
        let name = self.host.name.clone();
        let mut child = match self.try_boot(lab, paths) {
            Ok(child) => child,
            Err(error) => {
                self.note(paths, &format!("it cannot be booted: {}", chain(&error)));
                if let Err(error) = self.clear(lab, paths).await {
                    eprintln!("{name}: {}", chain(&error));
                }
                return Err(error);
            }
        };
        self.pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        self.boots += 1;
        self.turn = turn;
        eprintln!("{name}: boot {}", self.boots);
        let events = events.clone();
        tokio::spawn(async move {
            match child.wait().await {
                Ok(status) => {
                    let _ = events.send(Event::Ended(name, status));
                }
                Err(error) => eprintln!("{name}: cannot wait for it: {error}"),
            }
        });
        Ok(())
    }

    fn try_boot(&mut self, lab: &Definition, paths: &Paths) -> Result<Child, Error> {
        let place = paths.host(&self.host.name);
        let root = place.mount();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lab.root.display(),
            place.upper().display(),
            place.work().display()
        );
        mount(Some("overlay"), &root, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .at("mount", &root)?;
        self.mounted = true;
        self.cgroups = cgroup::create(lab, &self.host, paths)?;
        let console = self.console(paths)?;
        let errors = console.try_clone().at("open", &place.console())?;
        let mut command = Command::new(&lab.infrop);
        command.args(["lab", "boot"]);
        for group in &self.cgroups {
            command.arg("--cgroup").arg(group);
        }
        command.arg("--").args(arguments(lab, &self.host, paths));
        command.stdin(Stdio::null()).stdout(console).stderr(errors).spawn().at("start", &lab.infrop)
    }

    fn console(&self, paths: &Paths) -> Result<File, Error> {
        let path = paths.host(&self.host.name).console();
        File::options().create(true).append(true).open(&path).at("open", &path)
    }

    /// Says something where the person who looks at the host will see it.
    fn note(&self, paths: &Paths, text: &str) {
        eprintln!("{}: {text}", self.host.name);
        let written = self.console(paths).map(|mut console| writeln!(console, "infrop: {text}"));
        if !matches!(written, Ok(Ok(()))) {
            eprintln!("{}: and its console cannot be written", self.host.name);
        }
    }

    /// Asks it to shut down in order.
    pub(super) fn shut_down(&self) -> Result<(), Error> {
        let Some(pid) = self.pid else { return Ok(()) };
        // nspawn hands this on to the host's systemd as the wish to power off.
        kill(pid, Signal::SIGTERM).at("shut down", Path::new(self.host.name.as_str()))
    }

    /// Takes the power away: the host's first process dies, and the kernel ends all others with it.
    pub(super) fn cut(&self) -> Result<(), Error> {
        let Some(pid) = self.pid else { return Ok(()) };
        let path = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let children = match fs::read_to_string(&path) {
            // It ended by itself in this moment, which we hear of next.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            children => children.at("read", &path)?,
        };
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        // Before the host has a first process there is only nspawn; what it just started dies in `clear`.
        let victim = children.map(Pid::from_raw).find(|child| is_first_process(*child)).unwrap_or(pid);
        match kill(victim, Signal::SIGKILL) {
            Err(Errno::ESRCH) => Ok(()),
            result => result.at("cut the power of", Path::new(self.host.name.as_str())),
        }
    }

    /// Notes that nspawn ended and removes what the boot made.
    pub(super) async fn ended(&mut self, lab: &Definition, paths: &Paths) -> Result<(), Error> {
        self.pid = None;
        self.clear(lab, paths).await
    }

    /// Removes what a boot made, or what is left of it after an attempt that failed.
    pub(super) async fn clear(&mut self, lab: &Definition, paths: &Paths) -> Result<(), Error> {
        while let Some(group) = self.cgroups.last() {
            cgroup::remove(group)?;
            self.cgroups.pop();
        }
        if self.mounted {
            let root = paths.host(&self.host.name).mount();
            // Lazily: a last reference of a dying host does not keep the next boot waiting.
            umount2(&root, MntFlags::MNT_DETACH).at("unmount", &root)?;
            self.mounted = false;
        }
        // nspawn takes the card away; one that was killed leaves that to the kernel, which takes its time, and
        // the next host of this address needs the name. Usually there is none, and that is what ip says.
        let card = self.host.bridge_port(lab);
        let _ = Program::new("ip").args(["link", "delete", "dev", &card]).run().await;
        Ok(())
    }
}

/// Whether a process is number 1 of a process namespace of its own.
fn is_first_process(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_whitespace().skip(1).last() == Some("1")
}

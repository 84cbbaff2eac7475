//! The process that keeps a lab: it owns the network and the mounts, boots hosts and boots them again.
//!
//! ```text
//! supervise   holds the lab's lock, waits, and clears up
//!   └ keep    first process of a process namespace: with it, whatever way it ends, every host ends
//!       └ systemd-nspawn, one per host
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    net::{Ipv4Addr, TcpListener as StdListener},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill},
    },
    unistd::{Pid, setsid},
};
use program::Program;
use tokio::{
    process::Command,
    sync::{mpsc, oneshot},
};

use super::{
    boot::{BRIDGE, REBOOT_STATUS, arguments},
    cgroup,
    control::{Answer, HostStatus, Power, Request, Status},
    error::{At, Error},
    model::{Definition, GATEWAY, Host, HostName, PREFIX_LENGTH, Paths},
    serve::{Event, forward_api, serve_control, watch_maker},
    store,
};

/// What the supervisor prints when it answers on its socket.
pub(super) const READY: &str = "ready";

/// How long a host may take to shut down in order before its power is taken away.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(90);

/// Runs the supervisor of the lab in `directory` until the lab ends, and clears up after it.
pub fn supervise(directory: &Path) -> Result<(), Error> {
    let paths = Paths::new(directory.to_owned());
    let _lock = take_lock(&paths)?;
    let lab = Definition::read(&paths)?;
    // Out of the caller's session: a ctrl-C there is not for us.
    setsid().at("leave the session of", directory)?;
    cgroup::prepare_supervisor()?;
    unshare(CloneFlags::CLONE_NEWPID).at("separate the processes of", directory)?;
    let mut keeper = std::process::Command::new(&lab.infrop);
    keeper.args(["lab", "keep", "--directory"]).arg(directory);
    let status = keeper.status().at("start", &lab.infrop)?;
    eprintln!("the lab ended ({status})");
    if Definition::read(&paths)?.is_kept() {
        return cgroup::remove_recorded(&paths);
    }
    // Nobody else will.
    store::remove(&paths)
}

/// Runs the lab itself; only [`supervise`] starts this.
pub fn keep(directory: &Path) -> Result<(), Error> {
    set_pdeathsig(Signal::SIGKILL).at("tie to its supervisor", directory)?;
    let paths = Paths::new(directory.to_owned());
    let mut lab = Definition::read(&paths)?;
    // The forwarded port belongs to the computer's own network, so it is opened before leaving that.
    let api = listen(&mut lab, &paths)?;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).at("leave the network of", directory)?;
    let none: Option<&Path> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .at("separate the mounts of", directory)?;
    // nspawn and we look processes up by the numbers of our namespace.
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).at("mount", Path::new("/proc"))?;
    // What nspawn notes down goes with us.
    let notes = Path::new("/run/systemd/nspawn");
    fs::create_dir_all(notes).at("create", notes)?;
    mount(Some("tmpfs"), notes, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).at("mount", notes)?;
    // One thread: the namespaces are the thread's, and so are the programs it starts.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.at("start", directory)?;
    let result = runtime.block_on(Supervisor::run(lab, &paths, api));
    runtime.shutdown_background();
    result
}

fn take_lock(paths: &Paths) -> Result<File, Error> {
    let path = paths.lock();
    let file = File::create(&path).at("create", &path)?;
    file.lock().at("lock", &path)?;
    Ok(file)
}

/// Opens the port that leads to the API endpoint: the same as last time if it is free.
fn listen(lab: &mut Definition, paths: &Paths) -> Result<StdListener, Error> {
    let bind = |port| StdListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = bind(lab.api_port).or_else(|_| bind(0)).at("open a port for", paths.root())?;
    listener.set_nonblocking(true).at("open a port for", paths.root())?;
    lab.api_port = listener.local_addr().at("open a port for", paths.root())?.port();
    lab.write(paths)?;
    Ok(listener)
}

/// A host as the supervisor sees it.
struct Machine {
    host: Host,
    /// The nspawn process, while it runs.
    pid: Option<Pid>,
    boots: u32,
    cgroups: Vec<PathBuf>,
    /// Who waits for it to be off; not empty means that it is not booted again.
    waiting: Vec<oneshot::Sender<Answer>>,
}

struct Supervisor<'a> {
    lab: Definition,
    paths: &'a Paths,
    machines: BTreeMap<HostName, Machine>,
    events: mpsc::UnboundedSender<Event>,
}

impl<'a> Supervisor<'a> {
    async fn run(lab: Definition, paths: &'a Paths, api: StdListener) -> Result<(), Error> {
        set_up_network().await?;
        let (events, mut queue) = mpsc::unbounded_channel();
        serve_control(paths, &events)?;
        forward_api(api, lab.api_address)?;
        watch_maker(lab.tied, &events);
        let machines = lab.hosts.iter().map(|host| (host.name.clone(), Machine::new(host.clone()))).collect();
        let names: Vec<HostName> = lab.hosts.iter().map(|host| host.name.clone()).collect();
        let mut supervisor = Self { lab, paths, machines, events };
        for name in &names {
            supervisor.boot(name)?;
        }
        println!("{READY}");
        io::stdout().flush().at("report to the maker of", paths.root())?;
        let mut last_words = None;
        while let Some(event) = queue.recv().await {
            match event {
                Event::End => break,
                Event::Asked(Request::Shutdown, reply) => {
                    last_words = Some(reply);
                    break;
                }
                event => supervisor.handle(event),
            }
        }
        // All hosts end with this process, for it is the first of their namespace.
        if let Some(reply) = last_words {
            let _ = reply.send(Answer::Done);
            // The answer is written by another task of this thread.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ended(name, status) => self.ended(&name, status),
            Event::Overdue(name, boot) => {
                let overdue = self.machines.get(&name).is_some_and(|machine| machine.boots == boot);
                if overdue && let Err(error) = self.cut(&name) {
                    eprintln!("{name}: {error}");
                }
            }
            Event::Asked(Request::Status, reply) => {
                let _ = reply.send(Answer::Status(self.status()));
            }
            Event::Asked(Request::Power { host, power }, reply) => self.switch(&host, power, reply),
            Event::Complete => {
                self.lab.complete = true;
                if let Err(error) = self.lab.write(self.paths) {
                    eprintln!("cannot note that the lab is complete: {error}");
                }
            }
            // These two end the loop before they come here.
            Event::Asked(Request::Shutdown, _) | Event::End => {}
        }
    }

    fn status(&self) -> Status {
        let host = |machine: &Machine| HostStatus {
            name: machine.host.name.clone(),
            address: machine.host.address,
            running: machine.pid.is_some(),
            boots: machine.boots,
        };
        Status { api_port: self.lab.api_port, hosts: self.machines.values().map(host).collect() }
    }

    fn switch(&mut self, name: &HostName, power: Power, reply: oneshot::Sender<Answer>) {
        let Some(machine) = self.machines.get(name) else {
            let _ = reply.send(Answer::Refused(format!("there is no host {name}")));
            return;
        };
        let result = match (power, machine.pid) {
            (Power::On, None) => self.boot(name),
            (Power::On, Some(_)) | (_, None) => Ok(()),
            (Power::Off, Some(pid)) => {
                // nspawn hands this on to the host's systemd as the wish to power off.
                let asked = kill(pid, Signal::SIGTERM).at("shut down", Path::new(name.as_str()));
                self.cut_later(name, machine.boots);
                asked
            }
            (Power::Cut, Some(_)) => self.cut(name),
        };
        let ends = power != Power::On && result.is_ok();
        match self.machines.get_mut(name) {
            Some(machine) if ends && machine.pid.is_some() => machine.waiting.push(reply),
            _ => {
                let _ = reply.send(answer(&result));
            }
        }
    }

    fn cut_later(&self, name: &HostName, boot: u32) {
        let (events, name) = (self.events.clone(), name.clone());
        tokio::spawn(async move {
            tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
            let _ = events.send(Event::Overdue(name, boot));
        });
    }

    /// Takes the power away: the host's first process dies, and the kernel ends all others with it.
    fn cut(&self, name: &HostName) -> Result<(), Error> {
        let Some(pid) = self.machines.get(name).and_then(|machine| machine.pid) else { return Ok(()) };
        let path = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let children = fs::read_to_string(&path).at("read", &path)?;
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        // Before the host has a first process there is only nspawn; what it just started dies in `clear`.
        let victim = children.map(Pid::from_raw).find(|child| is_first_process(*child)).unwrap_or(pid);
        match kill(victim, Signal::SIGKILL) {
            // It ended by itself in this moment.
            Err(Errno::ESRCH) => Ok(()),
            result => result.at("cut the power of", Path::new(name.as_str())),
        }
    }

    fn ended(&mut self, name: &HostName, status: ExitStatus) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        machine.pid = None;
        eprintln!("{name}: ended ({status})");
        let reboots = status.code() == Some(REBOOT_STATUS) && machine.waiting.is_empty();
        let waiting = std::mem::take(&mut machine.waiting);
        let mut result = self.clear(name);
        if reboots && result.is_ok() {
            result = self.boot(name);
        }
        if let Err(error) = &result {
            eprintln!("{name}: {error}");
        }
        for reply in waiting {
            let _ = reply.send(answer(&result));
        }
    }

    /// Removes what a boot made.
    fn clear(&mut self, name: &HostName) -> Result<(), Error> {
        let Some(machine) = self.machines.get_mut(name) else { return Ok(()) };
        for group in machine.cgroups.drain(..) {
            cgroup::remove(&group)?;
        }
        let root = self.paths.host(name).mount();
        // Lazily: a last reference of a dying host does not keep the next boot waiting.
        umount2(&root, MntFlags::MNT_DETACH).at("unmount", &root)
    }

    /// Boots a host; if that fails, nothing of the attempt stays.
    fn boot(&mut self, name: &HostName) -> Result<(), Error> {
        let booted = self.try_boot(name);
        if booted.is_err()
            && let Err(error) = self.clear(name)
        {
            eprintln!("{name}: {error}");
        }
        booted
    }

    fn try_boot(&mut self, name: &HostName) -> Result<(), Error> {
        let Some(machine) = self.machines.get_mut(name) else { return Ok(()) };
        let place = self.paths.host(name);
        let root = place.mount();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            self.lab.root.display(),
            place.upper().display(),
            place.work().display()
        );
        mount(Some("overlay"), &root, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .at("mount", &root)?;
        machine.cgroups = cgroup::create(&self.lab, &machine.host, self.paths)?;
        let console_path = place.console();
        let console =
            File::options().create(true).append(true).open(&console_path).at("open", &console_path)?;
        let mut command = Command::new(&self.lab.infrop);
        command.args(["lab", "boot"]);
        for group in &machine.cgroups {
            command.arg("--cgroup").arg(group);
        }
        command.arg("--").args(arguments(&self.lab, &machine.host, &place));
        let errors = console.try_clone().at("open", &console_path)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(console)
            .stderr(errors)
            .spawn()
            .at("start", &self.lab.infrop)?;
        machine.pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        machine.boots += 1;
        eprintln!("{name}: boot {}", machine.boots);
        let (events, name) = (self.events.clone(), name.clone());
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
}

/// Whether a process is number 1 of a process namespace of its own.
fn is_first_process(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_whitespace().skip(1).last() == Some("1")
}

impl Machine {
    fn new(host: Host) -> Self {
        Self { host, pid: None, boots: 0, cgroups: Vec::new(), waiting: Vec::new() }
    }
}

fn answer(result: &Result<(), Error>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Refused(error.to_string()),
    }
}

/// The bridge that hosts are plugged into, in the namespace that is only ours.
async fn set_up_network() -> Result<(), Error> {
    // Given, because a bridge's own would change with the cards plugged in, and hosts would look for the old.
    const BRIDGE_MAC: &str = "02:00:0a:58:00:01";
    let address = format!("{GATEWAY}/{PREFIX_LENGTH}");
    for line in [
        ["link", "set", "lo", "up"].as_slice(),
        &["link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge"],
        &["address", "add", &address, "dev", BRIDGE],
        &["link", "set", BRIDGE, "up"],
    ] {
        Program::new("ip").args(line).run().await?;
    }
    Ok(())
}

//! The processes that keep a lab: they own its network and mounts.
//!
//! ```text
//! supervise   holds the lab's lock, waits, and clears up
//!   └ keep    first process of a process namespace: with it, whatever way it ends, every host ends
//!       └ systemd-nspawn, one per host
//! ```

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener as StdListener},
    path::Path,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::setsid,
};
use program::Program;

use super::{
    boot::BRIDGE,
    cgroup,
    error::{At, Error},
    files,
    keeper::Keeper,
    model::{Definition, GATEWAY, PREFIX_LENGTH},
    paths::Paths,
    store,
};

/// Runs the supervisor of the lab in `directory` until the lab ends, and clears up after it.
pub fn supervise(directory: &Path) -> Result<(), Error> {
    let paths = Paths::new(directory.to_owned());
    let _lock = take_lock(&paths.lock())?;
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
    // From here on nobody else writes to the lab: a killed one before us is really gone.
    let _lock = take_lock(&paths.keeper_lock())?;
    let mut lab = Definition::read(&paths)?;
    files::settle(&lab, &paths)?;
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
    let result = runtime.block_on(async {
        set_up_network().await?;
        Keeper::run(lab, &paths, api).await
    });
    runtime.shutdown_background();
    result
}

fn take_lock(path: &Path) -> Result<File, Error> {
    let file = File::create(path).at("create", path)?;
    file.lock().at("lock", path)?;
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

//! What a supervisor does while its lab runs: it answers, boots hosts, and is the one who changes the lab.
//!
//! A change is written to the definition before it is acted on, and files that no definition names are
//! leftovers: wherever this is killed, the next one goes on from the definition.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::{SocketAddrV4, TcpListener as StdListener},
    path::PathBuf,
    process::ExitStatus,
    time::Duration,
};

use images::cache::remove_tree;
use tokio::sync::{mpsc, watch};

use super::{
    boot::REBOOT_STATUS,
    control::{Answer, Power, Request, Status},
    error::{At, Error, chain},
    files,
    machine::Machine,
    model::{Definition, Host, HostName},
    paths::Paths,
    serve::{Event, Reply, forward_api, serve_control, watch_maker},
};

/// What the supervisor prints when it answers on its socket.
pub(super) const READY: &str = "ready";

/// How long a host may take to shut down in order before its power is taken away.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(90);

pub(super) struct Keeper<'a> {
    lab: Definition,
    paths: &'a Paths,
    machines: BTreeMap<HostName, Machine>,
    /// Counts the boots of all hosts.
    turns: u64,
    events: mpsc::UnboundedSender<Event>,
    /// Where the API port leads.
    api: watch::Sender<Option<SocketAddrV4>>,
}

impl<'a> Keeper<'a> {
    pub(super) async fn run(lab: Definition, paths: &'a Paths, port: StdListener) -> Result<(), Error> {
        let (events, mut queue) = mpsc::unbounded_channel();
        let (api, address) = watch::channel(lab.api_address);
        serve_control(paths, &events)?;
        forward_api(port, address)?;
        watch_maker(&events);
        let machines = lab.hosts.iter().map(|host| (host.name.clone(), Machine::new(host.clone()))).collect();
        let names: Vec<HostName> = lab.hosts.iter().map(|host| host.name.clone()).collect();
        let mut keeper = Self { lab, paths, machines, turns: 0, events, api };
        for name in &names {
            // The console of the host says why; others do not suffer for it.
            let _ = keeper.boot(name).await;
        }
        println!("{READY}");
        io::stdout().flush().at("report to the maker of", paths.root())?;
        let mut last_words = None;
        while let Some(event) = queue.recv().await {
            match event {
                // Until it is complete it is its maker's; a tied one always is.
                Event::MakerEnded if keeper.lab.tied || !keeper.lab.complete => break,
                Event::Asked(Request::Shutdown, reply) => {
                    last_words = Some(reply);
                    break;
                }
                event => keeper.handle(event).await,
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

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Ended(name, status) => self.ended(&name, status).await,
            Event::Overdue(name, turn) => {
                let overdue = self.machines.get(&name).filter(|machine| machine.turn() == turn);
                if let Some(Err(error)) = overdue.map(Machine::cut) {
                    eprintln!("{name}: {}", chain(&error));
                }
            }
            Event::Deleted(name, result) => {
                if let Some(machine) = self.machines.remove(&name) {
                    eprintln!("{name}: removed");
                    self.release(machine.waiting, machine.deferred, &result);
                }
            }
            Event::Asked(request, reply) => self.asked(request, reply).await,
            Event::MakerEnded => {}
        }
    }

    async fn asked(&mut self, request: Request, reply: Reply) {
        let machine = request.host().and_then(|name| self.machines.get_mut(name));
        if let Some(machine) = machine.filter(|machine| machine.defers(&request)) {
            machine.deferred.push((request, reply));
            return;
        }
        let answer = match request {
            Request::Status => Answer::Status(self.status()),
            Request::Complete => answer(&self.change(|lab| lab.complete = true)),
            Request::LeadApi { address } => answer(&self.change(|lab| lab.api_address = Some(address))),
            Request::Add { host } => match self.add(&host).await {
                Ok(host) => Answer::Host(host),
                Err(error) => refusal(&error),
            },
            Request::Remove { host } => return self.remove(&host, reply).await,
            Request::Power { host, power } => return self.switch(&host, power, reply).await,
            // It ends the loop before it comes here.
            Request::Shutdown => Answer::Done,
        };
        // A caller that went away does not want it any more; what it asked for is done.
        let _ = reply.send(answer);
    }

    fn status(&self) -> Status {
        let Definition { name, owner, api_port, api_address, .. } = self.lab.clone();
        let hosts = self.machines.values().map(Machine::status).collect();
        Status { name, owner, api_port, api_address, hosts }
    }

    /// Changes the definition, on the disk first.
    fn change(&mut self, change: impl FnOnce(&mut Definition)) -> Result<(), Error> {
        let mut lab = self.lab.clone();
        change(&mut lab);
        if lab != self.lab {
            lab.write(self.paths)?;
            self.api.send_replace(lab.api_address);
            self.lab = lab;
        }
        Ok(())
    }

    /// Makes a host unless there is one of that name, and boots it unless it runs.
    async fn add(&mut self, name: &HostName) -> Result<Host, Error> {
        if !self.machines.contains_key(name) {
            let address = self.lab.free_address()?;
            let mut host = Host { name: name.clone(), address, host_key: String::new() };
            host.host_key = files::write_host(&host, &[host.clone()], self.paths).await?;
            self.change(|lab| lab.add(host.clone()))?;
            self.machines.insert(name.clone(), Machine::new(host));
        }
        files::write_ssh(&self.lab, self.paths)?;
        self.boot(name).await?;
        Ok(self.lab.host(name)?.clone())
    }

    async fn remove(&mut self, name: &HostName, reply: Reply) {
        let Some(machine) = self.machines.get_mut(name) else {
            // Files of one that was never finished may be there.
            let moved = files::move_away(name, self.paths);
            tokio::spawn(async move { reply.send(answer(&delete(moved).await)) });
            return;
        };
        machine.removing = true;
        machine.waiting.push(reply);
        let result = match machine.cut() {
            // It goes on when the host ended.
            Ok(()) if machine.is_running() => return,
            // Again, for an earlier attempt may have failed.
            Ok(()) => machine.clear(&self.lab, self.paths).await,
            Err(error) => Err(error),
        };
        self.off(name, result);
    }

    /// Removes a host that is off from the lab. Deleting its files goes on beside other work.
    fn forget(&mut self, name: &HostName) -> Result<(), Error> {
        self.change(|lab| lab.hosts.retain(|host| host.name != *name))?;
        // It is gone; what fails from here on leaves files that nobody takes for a host.
        let moved = files::write_ssh(&self.lab, self.paths).and_then(|()| files::move_away(name, self.paths));
        let (events, name) = (self.events.clone(), name.clone());
        tokio::spawn(async move { events.send(Event::Deleted(name, delete(moved).await)) });
        Ok(())
    }

    async fn switch(&mut self, name: &HostName, power: Power, reply: Reply) {
        let Some(machine) = self.machines.get_mut(name) else {
            let _ = reply.send(Answer::Refused(format!("there is no host {name}")));
            return;
        };
        let result = match power {
            Power::On => self.boot(name).await,
            _ if !machine.is_running() => Ok(()),
            Power::Off => machine.shut_down(),
            Power::Cut => machine.cut(),
        };
        match self.machines.get_mut(name) {
            Some(machine) if power != Power::On && result.is_ok() && machine.is_running() => {
                machine.waiting.push(reply);
                if power == Power::Off {
                    cut_later(&self.events, name.clone(), machine.turn());
                }
            }
            _ => {
                let _ = reply.send(answer(&result));
            }
        }
    }

    async fn ended(&mut self, name: &HostName, status: ExitStatus) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        eprintln!("{name}: ended ({status})");
        let reboots = status.code() == Some(REBOOT_STATUS) && machine.waiting.is_empty();
        let mut result = machine.ended(&self.lab, self.paths).await;
        if reboots && result.is_ok() {
            result = self.boot(name).await;
        }
        self.off(name, result);
    }

    /// Goes on with what waits for a host to be off.
    fn off(&mut self, name: &HostName, mut result: Result<(), Error>) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        if machine.removing && result.is_ok() {
            result = self.forget(name);
            if result.is_ok() {
                return;
            }
        }
        if let Err(error) = &result {
            eprintln!("{name}: {}", chain(error));
        }
        let Some(machine) = self.machines.get_mut(name) else { return };
        machine.removing = false;
        let (waiting, deferred) =
            (std::mem::take(&mut machine.waiting), std::mem::take(&mut machine.deferred));
        self.release(waiting, deferred, &result);
    }

    /// Answers those who waited, and takes up what was put off.
    fn release(&self, waiting: Vec<Reply>, deferred: Vec<(Request, Reply)>, result: &Result<(), Error>) {
        for reply in waiting {
            let _ = reply.send(answer(result));
        }
        for (request, reply) in deferred {
            let _ = self.events.send(Event::Asked(request, reply));
        }
    }

    /// Boots a host that is off.
    async fn boot(&mut self, name: &HostName) -> Result<(), Error> {
        let Some(machine) = self.machines.get_mut(name).filter(|machine| !machine.is_running()) else {
            return Ok(());
        };
        self.turns += 1;
        machine.boot(self.turns, &self.lab, self.paths, &self.events).await
    }
}

/// Lets a host that does not shut down in time lose its power.
fn cut_later(events: &mpsc::UnboundedSender<Event>, name: HostName, turn: u64) {
    let events = events.clone();
    tokio::spawn(async move {
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
        let _ = events.send(Event::Overdue(name, turn));
    });
}

/// Deletes what was moved away: all that a host had, which can be gigabytes.
async fn delete(moved: Result<Option<PathBuf>, Error>) -> Result<(), Error> {
    let Some(directory) = moved? else { return Ok(()) };
    let path = directory.clone();
    let deleted = tokio::task::spawn_blocking(move || remove_tree(&directory)).await;
    Ok(deleted.map_err(io::Error::other).at("delete", &path)??)
}

fn answer(result: &Result<(), Error>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(error) => refusal(error),
    }
}

fn refusal(error: &Error) -> Answer {
    Answer::Refused(chain(error))
}

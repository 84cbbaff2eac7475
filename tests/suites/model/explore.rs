//! Breadth first through all states, so that the first broken invariant has a shortest way to it.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hash as _, Hasher},
    time::{Duration, Instant},
};

use crate::{
    invariants::Broken,
    state::{Move, State},
    world::World,
};

/// More is not meant to be explored in a test.
const MOST_STATES: usize = 4_000_000;

/// A quick hash: states are many, and nobody chooses them to collide.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FastHasher(u64);

pub(crate) type FastHash = BuildHasherDefault<FastHasher>;

impl FastHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        // The upper bits are the better ones, and maps look at the lower ones, too.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.add(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_isize(&mut self, word: isize) {
        self.add(u64::from_ne_bytes((word as i64).to_ne_bytes()));
    }
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    pub(crate) depth: usize,
    pub(crate) took: Duration,
    /// The first broken invariant, and the way there.
    pub(crate) broken: Option<(Broken, Vec<Move>)>,
}

/// A state, how it came, and which comes next in a fair run; itself if it is an end.
#[derive(Debug)]
struct Known {
    state: State,
    from: usize,
    by: Option<Move>,
    depth: usize,
    fair: usize,
}

#[derive(Debug, Default)]
struct Graph {
    known: Vec<Known>,
    places: HashMap<u64, usize, FastHash>,
}

impl Graph {
    /// The place of a state.
    fn place(&mut self, state: State, from: usize, by: Option<Move>) -> usize {
        let mut hasher = FastHasher::default();
        state.hash(&mut hasher);
        let mut hash = hasher.finish();
        loop {
            match self.places.entry(hash) {
                Entry::Occupied(entry) => {
                    let place = *entry.get();
                    if self.known.get(place).is_some_and(|known| known.state == state) {
                        return place;
                    }
                    hash = hash.wrapping_add(1);
                }
                Entry::Vacant(entry) => {
                    let place = self.known.len();
                    entry.insert(place);
                    let depth = self.known.get(from).map_or(0, |known| known.depth + 1);
                    self.known.push(Known { state, from, by, depth, fair: place });
                    return place;
                }
            }
        }
    }

    fn way(&self, mut place: usize) -> Vec<Move> {
        let mut way = Vec::new();
        while let Some(Known { from, by: Some(by), .. }) = self.known.get(place) {
            way.push(*by);
            place = *from;
        }
        way.reverse();
        way
    }
}

/// Explores all states that can be reached.
pub(crate) fn explore(world: &mut World) -> anyhow::Result<Found> {
    let started = Instant::now();
    let mut graph = Graph::default();
    let mut transitions = 0;
    graph.place(world.start(), 0, None);
    let mut place = 0;
    let mut broken = None;
    'all: while let Some(state) = graph.known.get(place).map(|known| known.state) {
        anyhow::ensure!(graph.known.len() < MOST_STATES, "{}: too many states", world.scenario.name);
        let mut fair = None;
        let regular = world.regular(&state);
        let mut go = |world: &mut World,
                      graph: &mut Graph,
                      one: Move|
         -> anyhow::Result<Result<Option<usize>, Broken>> {
            Ok(match world.apply(&state, one)? {
                Ok(next) if next == state => Ok(None),
                Ok(next) => {
                    transitions += 1;
                    Ok(Some(graph.place(next, place, Some(one))))
                }
                Err(broken) => Err(broken),
            })
        };
        let mut moves: std::collections::VecDeque<Move> = regular.into();
        let mut classes = 0;
        loop {
            let Some(one) = moves.pop_front() else {
                classes += 1;
                match classes {
                    1 if fair.is_none() => moves.extend(world.last(&state)?),
                    1 => {}
                    2 => {
                        if let Some(known) = graph.known.get_mut(place) {
                            known.fair = fair.unwrap_or(place);
                        }
                        moves.extend(world.nuisances(&state));
                    }
                    _ => break,
                }
                continue;
            };
            match go(world, &mut graph, one)? {
                Ok(next) if classes < 2 => fair = fair.or(next),
                Ok(_) => {}
                Err(found) => {
                    let mut way = graph.way(place);
                    way.push(one);
                    broken = Some((found, way));
                    break 'all;
                }
            }
        }
        place += 1;
    }
    if broken.is_none() {
        broken = endless(world, &graph)?;
    }
    let depth = graph.known.iter().map(|known| known.depth).max().unwrap_or(0);
    Ok(Found { states: graph.known.len(), transitions, depth, took: started.elapsed(), broken })
}

/// I8: a fair run from a state that does not end, or not well.
fn endless(world: &mut World, graph: &Graph) -> anyhow::Result<Option<(Broken, Vec<Move>)>> {
    let mut good = vec![false; graph.known.len()];
    for first in 0..graph.known.len() {
        let mut run = Vec::new();
        let mut place = first;
        let mut steps = 0;
        let trouble = loop {
            let Some(known) = graph.known.get(place) else { anyhow::bail!("a state is not known") };
            if good.get(place).copied().unwrap_or(false) {
                break None;
            }
            run.push(place);
            steps += 1;
            if known.fair == place {
                let (moving, why) = world.decider.end(&world.facts, &known.state)?;
                break why.or_else(|| moving.then(|| "there would be something to do".to_owned()));
            }
            if steps > graph.known.len() {
                break Some("it goes on for ever".to_owned());
            }
            place = known.fair;
        };
        if let Some(why) = trouble {
            let what = format!("a run ends badly: {why}");
            let mut way = graph.way(first);
            way.extend(run.iter().skip(1).take(40).filter_map(|place| graph.known.get(*place)?.by));
            return Ok(Some((Broken { invariant: "I8", what }, way)));
        }
        for place in run {
            if let Some(good) = good.get_mut(place) {
                *good = true;
            }
        }
    }
    Ok(None)
}

//! LazyBatching (Choi, Kim, Rhu; HPCA'21): requests are batched node by node, and newcomers may
//! catch up with a running batch.
//!
//! A request's nodes run one after the other, in graph order (section II-A). Requests at the same
//! node form a *sub-batch*. The sub-batch that is furthest behind runs. So newcomers preempt a
//! batch between two of its nodes, and merge with it when they have caught up (section IV-A). The
//! slack of all requests decides whether they may (section IV-C, see `slack`). If not, the batch
//! completes uninterrupted, even if slack appears meanwhile (section IV-B). Then all waiting
//! requests begin together.
//!
//! The paper keeps sub-batches on a stack, its BatchTable. It pushes newcomers on top and merges
//! the two topmost when they are at one node (section IV-B, figure 10). A newcomer is behind all
//! others, so the top is furthest behind. Here requests are in a list, and the top is found by
//! search. That is equal, and works for graphs of different shapes. The steps of a chain are one
//! node, because their weights are the same. So a request at its first step joins those at any
//! other, as under cellular batching.

mod slack;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::{Failure, Row};
use crate::id::{CellTypeId, Time, WorkerId};
use crate::policy::shelf::{Rules, Shelves};
use crate::policy::whole::release;
use crate::policy::{Chain, Ended, Key, Member, NANOSECONDS_PER_MS, Parameters, Pick, Policy, PolicyNameError, Takes, View, number};
use slack::Profile;

/// Parameters of the policy `lazy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lazy {
    /// Nanoseconds within which a request should be done, if it has no earlier deadline.
    pub objective_ns: u64,
    /// The percentile of the lengths seen that stands for a chain of unknown length, 1 to 100.
    pub percentile: u8,
}

/// The paper's objective (section VI) and percentile (section IV-C) where none are given.
const OBJECTIVE_MS: u64 = 100;
const PERCENTILE: u64 = 90;

/// A longer objective is a mistake.
const OBJECTIVE_MS_MAX: u64 = 60_000;

impl Parameters for Lazy {
    const NAMES: &'static [&'static str] = &["OBJECTIVE_MS", "PERCENTILE"];

    fn read(given: &[&str]) -> Result<Self, PolicyNameError> {
        let objective = "a latency objective in milliseconds, 1 to 60000; write `lazy:100`";
        let percentile = "a percentile, 1 to 100; write `lazy:100:90`";
        Ok(Self {
            objective_ns: number(given.first(), OBJECTIVE_MS, 1..=OBJECTIVE_MS_MAX, objective)? * NANOSECONDS_PER_MS,
            percentile: number(given.get(1), PERCENTILE, 1..=100, percentile)? as u8,
        })
    }
}

/// As it is read. Fractions of a millisecond are dropped.
impl fmt::Display for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.objective_ns / NANOSECONDS_PER_MS, self.percentile)
    }
}

/// A batch may be as large as the smallest type limit, and begins at once.
impl Rules for Lazy {
    fn most(&self, view: View<'_>, first: &Member) -> usize {
        view.batch_limit(first) as usize
    }
}

/// A request of a batch, and its next node.
#[derive(Clone, Copy, Debug)]
struct Rider {
    member: Member,
    /// In its growth.
    chain: u32,
    stage: u32,
    step: u32,
    /// Whether the steps that the chain names were checked; only of the next step if the chain may
    /// stop by itself.
    checked: bool,
    /// Nanoseconds that the rest of it takes alone.
    left_ns: u64,
    /// When it should be done.
    due: Time,
}

/// A node in a graph, the same for all requests: requests at an equal `NodeId` form a sub-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeId {
    chain: u32,
    stage: u32,
    cell_type: CellTypeId,
}

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    At(NodeId),
    /// It depends on tasks in flight.
    Wait,
    /// Every node was submitted.
    Over,
}

/// The paper's BatchTable.
#[derive(Debug, Default)]
struct Table {
    riders: Vec<Rider>,
    /// A request had no slack for a newcomer: the batch completes uninterrupted.
    closed: bool,
    /// Newcomers were admitted in this decision. They are admitted again after the next task.
    asked: bool,
}

/// A table on each worker, and what was learned of the model.
#[derive(Debug)]
pub(super) struct LazyBatching {
    parameters: Lazy,
    shelves: Shelves,
    tables: BTreeMap<WorkerId, Table>,
    profile: Profile,
}

impl LazyBatching {
    pub(super) fn new(parameters: Lazy) -> Self {
        Self { parameters, shelves: Shelves::default(), tables: BTreeMap::new(), profile: Profile::default() }
    }

    fn riders(&self, worker: WorkerId) -> &[Rider] {
        self.tables.get(&worker).map_or(&[], |table| &table.riders)
    }

    fn rider(&self, view: View<'_>, member: Member) -> Rider {
        let left_ns = self.alone_ns(view, &member, 0);
        Rider { member, chain: 0, stage: 0, step: 0, checked: false, left_ns, due: self.due_at(view, &member) }
    }

    /// Takes the newcomers that slack allows.
    fn admit(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let (newcomers, refused) = self.admissible(view, worker);
        let table = self.tables.entry(worker).or_default();
        table.closed |= refused;
        table.asked = true;
        if newcomers == 0 {
            return None;
        }
        let members = self.shelves.take(&self.parameters, view, view.worker(worker)?.domain, Some(newcomers));
        let requests = members.iter().map(|member| member.request).collect();
        let riders: Vec<_> = members.into_iter().map(|member| self.rider(view, member)).collect();
        self.tables.entry(worker).or_default().riders.extend(riders);
        Some(Pick::Take(requests))
    }

    /// Moves a rider past ended chains to its next node. Returns a chain of which it names a step
    /// that was never executed.
    fn settle_rider(&self, view: View<'_>, rider: &mut Rider) -> Option<u32> {
        let mut beyond = None;
        while let Some(graph) = view.growth(&rider.member).filter(|graph| (rider.chain as usize) < graph.chains.len()) {
            let Some(chain) = rider.chain_in(view).filter(|chain| !chain.cancelled && rider.step < chain.end) else {
                *rider = Rider { chain: rider.chain + 1, stage: 0, step: 0, checked: false, ..*rider };
                rider.left_ns = rider.left_ns.min(self.alone_ns(view, &rider.member, rider.chain));
                continue;
            };
            if rider.checked || rider.waits_for_stop(view, graph.first_chain, chain) {
                break;
            }
            beyond = beyond.or(view.names_beyond_end(chain, rider.step));
            rider.checked = true;
        }
        beyond
    }

    /// Requests leave as soon as nothing of them is left.
    fn release_complete(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let table = self.tables.get_mut(&worker)?;
        table.riders.retain(|rider| view.is_taken(&rider.member, worker));
        let is_over = |rider: &Rider| view.request(rider.member.request).flying == 0 && matches!(rider.next(view), Next::Over);
        let over: Vec<Member> = table.riders.iter().filter(|rider| is_over(rider)).map(|rider| rider.member).collect();
        table.riders.retain(|rider| !over.contains(&rider.member));
        // An empty batch is dropped, and no longer keeps newcomers out.
        if table.riders.is_empty() {
            self.tables.remove(&worker);
        }
        over.iter().for_each(|member| self.learn_lengths(view, member));
        release(view, &over, worker)
    }

    /// Runs the next node of the sub-batch that is furthest behind, and moves its riders on.
    fn next_node(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let table = self.tables.get_mut(&worker)?;
        let node = table.riders.iter().filter_map(|rider| rider.node(view)).min()?;
        let most = view.type_of(node.cell_type).map_or(1, |known| known.batch.max as usize);
        let (mut fits, mut rows) = (view.fits(node.cell_type), Vec::new());
        for rider in &mut table.riders {
            if rows.len() >= most || rider.node(view) != Some(node) {
                continue;
            }
            let Some(chain) = rider.chain_in(view) else { continue };
            let row = Row { lane: chain.lane(rider.stage), step: rider.step };
            if !fits(&row) {
                break;
            }
            rows.push(row);
            rider.left_ns = rider.left_ns.saturating_sub(slack::node_ns(view, node.cell_type));
            (rider.stage, rider.step, rider.checked) = if rider.stage + 1 < chain.stages() {
                (rider.stage + 1, rider.step, true)
            } else {
                (0, rider.step + 1, !chain.stops_itself())
            };
        }
        Some(Pick::Run(node.cell_type, rows))
    }
}

impl Rider {
    fn chain_in<'a>(&self, view: View<'a>) -> Option<&'a Chain> {
        let graph = view.growth(&self.member)?;
        view.request(self.member.request).chain(graph.first_chain + self.chain)
    }

    /// The node that a settled rider is at.
    fn node(&self, view: View<'_>) -> Option<NodeId> {
        match self.next(view) {
            Next::At(node) => Some(node),
            Next::Wait | Next::Over => None,
        }
    }

    /// What it does next. `Wait` if it has to check first which steps its chain names.
    fn next(&self, view: View<'_>) -> Next {
        let mut at = *self;
        while let Some(graph) = view.growth(&at.member).filter(|graph| (at.chain as usize) < graph.chains.len()) {
            let Some(chain) = at.chain_in(view).filter(|chain| !chain.cancelled && at.step < chain.end) else {
                at = Self { chain: at.chain + 1, stage: 0, step: 0, checked: false, ..at };
                continue;
            };
            if !at.checked && at.waits_for_stop(view, graph.first_chain, chain) {
                return Next::Wait;
            }
            return Next::At(NodeId { chain: at.chain, stage: at.stage, cell_type: view.cell_type_of(chain.lane(at.stage)) });
        }
        Next::Over
    }

    /// Whether the length of its chain, or what the chain reads, depends on unknown stops of
    /// earlier chains; or whether the chain's own stop decides if its next step runs.
    fn waits_for_stop(&self, view: View<'_>, first: u32, chain: &Chain) -> bool {
        let request = view.request(self.member.request);
        let mut before = (first..first + self.chain).filter_map(|number| request.chain(number));
        let mut unknown = || match self.step {
            0 => before.any(|chain| chain.stops && !chain.ended()),
            _ => view.names_beyond_end(chain, self.step).is_some(),
        };
        request.flying > 0 && unknown()
    }
}

impl Policy for LazyBatching {
    fn takes(&self) -> Takes {
        Takes::RequestsInOrder
    }

    fn offered(&mut self, view: View<'_>, growth: Member) {
        self.shelves.put(growth, view.request(growth.request).domain, Vec::new());
    }

    /// Removes ended requests from batches. An empty batch is dropped, and no longer keeps
    /// newcomers out.
    fn ended(&mut self, view: View<'_>, ended: &Ended) {
        self.shelves.remove(ended.request);
        self.tables.retain(|worker, table| {
            table.riders.retain(|rider| view.is_taken(&rider.member, *worker));
            !table.riders.is_empty()
        });
    }

    /// Since when a worker could run something.
    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key> {
        let state = view.worker(worker).filter(|state| state.outstanding <= view.config().low_water)?;
        let mut staying = self.riders(worker).iter().filter(|rider| view.is_taken(&rider.member, worker));
        if staying.any(|rider| matches!(rider.next(view), Next::At(_))) {
            return Some(Key::FIRST);
        }
        self.shelves.oldest(&self.parameters, view, state.domain).filter(|_| self.admissible(view, worker).0 > 0)
    }

    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        if !self.tables.get(&worker).is_some_and(|table| table.asked)
            && let Some(pick) = self.admit(view, worker)
        {
            return Some(pick);
        }
        let mut riders = std::mem::take(&mut self.tables.get_mut(&worker)?.riders);
        riders.retain(|rider| view.is_taken(&rider.member, worker));
        let settle = |rider: &mut Rider| {
            let chain = self.settle_rider(view, rider)?;
            Some((rider.member.request, Failure::BeyondEnd { chain }))
        };
        let failures: Vec<_> = riders.iter_mut().filter_map(settle).collect();
        let table = self.tables.get_mut(&worker)?;
        table.riders = riders;
        if !failures.is_empty() {
            return Some(Pick::GiveUp(failures));
        }
        table.asked = false;
        self.release_complete(view, worker).or_else(|| self.next_node(view, worker))
    }

    fn done(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        self.release_complete(view, worker)
    }
}

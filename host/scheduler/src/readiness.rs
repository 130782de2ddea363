//! What each node waits for, and when it need wait no longer.
//!
//! A node is looked at again whenever something it waits for was submitted or completed; the answer is computed from the state of its
//! producers, never counted, so that it cannot drift. Under `Release::Node` a producer that is queued on the worker which is to run the node
//! is as good as complete; under `Release::Subgraph` only producers inside the node's own subgraph are.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Dependency, Source, UnfoldedStage};

use crate::command::Failure;
use crate::config::Release;
use crate::id::{LaneId, RequestId, WorkerId};
use crate::lane::{Lane, NodeState, Progress, StageRef, Status};
use crate::request::{Chain, Request, both};
use crate::scheduler::Scheduler;

/// Whether a node may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not yet.
    No,
    /// Yes; if a worker is named, on that one alone.
    Ready(Option<WorkerId>),
    /// Never: all else is there, but it names a step that this chain did not execute.
    Beyond(u32),
}

/// Inputs of a node, taken together.
struct Sum {
    status: Status,
    beyond: Option<u32>,
}

impl Sum {
    /// Adds a producer's status; `complete` if only a complete one will do.
    fn add(&mut self, chain: u32, status: Status, complete: bool) {
        match status {
            Status::Never => self.beyond = self.beyond.or(Some(chain)),
            Status::Queued(_) if complete => self.status = Status::Waiting,
            status => self.status = both(self.status, status),
        }
    }

    fn verdict(&self) -> Verdict {
        match (self.status, self.beyond) {
            (Status::Waiting | Status::Never, _) => Verdict::No,
            (_, Some(chain)) => Verdict::Beyond(chain),
            (Status::Queued(worker), None) => Verdict::Ready(Some(worker)),
            (Status::Done, None) => Verdict::Ready(None),
        }
    }
}

/// Asking.
impl Scheduler {
    fn subgraphs(&self) -> bool {
        self.config.release == Release::Subgraph
    }

    fn stage_of<'a>(request: &'a Request, lane: &Lane) -> Option<(&'a UnfoldedGrowth, &'a Chain, &'a UnfoldedStage)> {
        let graph = &request.growth(lane.growth)?.graph;
        let stage = &graph.chains[(lane.chain - graph.first_chain) as usize].stages[lane.stage as usize];
        Some((graph, request.chain(lane.chain)?, stage))
    }

    /// Whether a node may be queued; of its inputs from inside its own subgraph only if `inside` is asked for.
    fn weigh(&self, lane: LaneId, step: u32, inside: bool) -> Verdict {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let Some((graph, own, stage)) = Self::stage_of(request, place) else { return Verdict::No };
        let strict = self.subgraphs();
        let mut sum = Sum { status: Status::Done, beyond: None };
        if let Some(root) = own.root.and_then(|root| request.chain(root)).filter(|root| !root.gone) {
            let status = self.lane(root.lane(root.stop_stage.unwrap_or(0))).status(step);
            if status != Status::Done {
                return Verdict::No;
            }
        }
        for depends in &stage.depends {
            match depends {
                Dependency::Previous { .. } if step == 0 => {}
                Dependency::Previous { stage } => {
                    let mine = *stage == place.stage && place.together(step - 1, step);
                    if inside || !mine {
                        sum.add(place.chain, self.lane(own.lane(*stage)).status(step - 1), strict && !mine);
                    }
                }
                Dependency::Sibling { stage } => sum.add(place.chain, self.lane(own.lane(*stage)).status(step), strict),
                Dependency::Step { chain, stage, at } => {
                    let Some(other) = request.chain(*chain).filter(|chain| !chain.gone) else { continue };
                    let Some(named) = target(*at, other.bound, step) else { return Verdict::No };
                    sum.add(*chain, self.lane(other.lane(*stage)).status(named), strict || other.stops);
                }
                Dependency::End { chain } => sum.add(*chain, self.end_status(request, *chain), strict),
                Dependency::Nodes { input } => {
                    let Source::Nodes { stage: named_stage, of, .. } = &stage.inputs[*input as usize].source else { continue };
                    let Some(node) = of.get(step as usize) else { continue };
                    if node.chain < graph.first_chain {
                        sum.add(node.chain, self.end_status(request, node.chain), strict);
                        continue;
                    }
                    let Some(other) = request.chain(node.chain).filter(|chain| !chain.gone) else { continue };
                    let mine = node.chain == place.chain && *named_stage == place.stage && place.together(node.step, step);
                    if inside || !mine {
                        let status = self.lane(other.lane(*named_stage)).status(node.step);
                        sum.add(node.chain, status, (strict && !mine) || other.stops && node.chain != place.chain);
                    }
                }
            }
            if sum.status == Status::Waiting {
                return Verdict::No;
            }
        }
        sum.verdict()
    }

    /// Steps of this growth's chains that a node names one by one, and what is true of them.
    pub(crate) fn named_steps(&self, lane: LaneId, step: u32) -> impl Iterator<Item = (u32, Status)> {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let depends = Self::stage_of(request, place).map(|(graph, _, stage)| (graph, stage));
        depends.into_iter().flat_map(|(graph, stage)| stage.depends.iter().map(move |depends| (graph, stage, depends))).filter_map(
            move |(graph, stage, depends)| {
                let (chain, stage, step) = match depends {
                    Dependency::Step { chain, stage, at } => (*chain, *stage, target(*at, request.chain(*chain)?.bound, step)?),
                    Dependency::Nodes { input } => match &stage.inputs[*input as usize].source {
                        Source::Nodes { stage, of, .. } => of.get(step as usize).map(|node| (node.chain, *stage, node.step))?,
                        _ => return None,
                    },
                    _ => return None,
                };
                let named = request.chain(chain).filter(|named| chain >= graph.first_chain && !named.gone)?;
                Some((chain, self.lane(named.lane(stage)).status(step)))
            },
        )
    }

    /// What is true of all executed steps of a chain together.
    fn end_status(&self, request: &Request, chain: u32) -> Status {
        let Some(chain) = request.chain(chain) else { return Status::Done };
        if chain.ended || chain.gone {
            return Status::Done;
        }
        if chain.stops {
            return Status::Waiting;
        }
        (0..chain.stages()).fold(Status::Done, |status, stage| both(status, self.lane(chain.lane(stage)).whole_status()))
    }

    /// Whether a node is executed for certain, once what it waits for is there.
    fn certain(&self, lane: LaneId, step: u32) -> bool {
        let place = self.lane(lane);
        let Some(own) = self.request(place.request).chain(place.chain) else { return false };
        match own.stop_stage {
            Some(stage) if step > 0 => self.lane(own.lane(stage)).status(step - 1) == Status::Done,
            _ => true,
        }
    }
}

/// The step of a chain of `bound` steps that `at` means at `step`.
fn target(at: Affine, bound: u32, step: u32) -> Option<u32> {
    let named = at.at(step)?;
    if at.from_end { bound.checked_sub(1)?.checked_sub(named) } else { Some(named) }
}

/// Who names a step.
enum Namers {
    Nobody,
    Step(u32),
    Everybody,
}

/// The inverse of [`target`].
fn namers(at: Affine, bound: u32, step: u32) -> Namers {
    let named = if at.from_end { i64::from(bound) - 1 - i64::from(step) } else { i64::from(step) };
    let distance = named - i64::from(at.first);
    match i64::from(at.stride) {
        0 if distance == 0 => Namers::Everybody,
        0 => Namers::Nobody,
        stride if distance % stride == 0 => u32::try_from(distance / stride).map_or(Namers::Nobody, Namers::Step),
        _ => Namers::Nobody,
    }
}

/// Looking again.
impl Scheduler {
    /// Notes who waits for whom in a growth that was just placed.
    pub(crate) fn connect(&mut self, id: RequestId, graph: &Arc<UnfoldedGrowth>) {
        let frees = self.request(id).reservation.is_some();
        for (local, chain) in graph.chains.iter().enumerate() {
            let number = graph.first_chain + local as u32;
            if let Some(like) = chain.length.like {
                self.follow(id, graph, number, like);
            }
            let mut reads: Vec<u32> = chain.length.like.into_iter().filter(|_| frees).collect();
            for (index, stage) in chain.stages.iter().enumerate() {
                let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(index as u32)) else { continue };
                for depends in &stage.depends {
                    self.connect_stage(id, lane, stage, depends, frees.then_some(&mut reads));
                }
            }
            if frees {
                self.note_reads(id, number, reads);
            }
        }
        for (local, chain) in graph.chains.iter().enumerate() {
            let number = graph.first_chain + local as u32;
            let Some(first) = self.request(id).chain(number).filter(|chain| chain.root.is_none() && chain.stages() == 1) else { continue };
            let lane = first.first_lane;
            let stage = &chain.stages[0];
            let alone = stage.depends.iter().all(|depends| *depends == Dependency::Previous { stage: 0 });
            let place = self.lane_mut(lane);
            let in_order = matches!(place.progress, Progress::Front(_));
            place.plain = in_order && alone && stage.successors.targets.is_empty() && place.readers.is_empty();
        }
    }

    fn connect_stage(&mut self, id: RequestId, lane: LaneId, stage: &UnfoldedStage, depends: &Dependency, reads: Option<&mut Vec<u32>>) {
        let own = self.lane(lane).chain;
        let reader = StageRef { chain: own, stage: self.lane(lane).stage };
        let mut named = Vec::new();
        match depends {
            Dependency::Previous { .. } | Dependency::Sibling { .. } => {}
            Dependency::Step { chain, stage, at } => {
                named.push(*chain);
                if let Some(producer) = self.request(id).chain(*chain).map(|chain| chain.lane(*stage)) {
                    self.lane_mut(producer).readers.push((reader, *at));
                }
            }
            Dependency::End { chain } => {
                named.push(*chain);
                self.wait_for_end(id, reader, *chain);
            }
            Dependency::Nodes { input } => {
                let Source::Nodes { of, .. } = &stage.inputs[*input as usize].source else { return };
                let first = self.request(id).growth(self.lane(lane).growth).map_or(0, |growth| growth.graph.first_chain);
                if first > 0 || reads.is_some() {
                    named.extend(of.iter().map(|node| node.chain));
                    named.sort_unstable();
                    named.dedup();
                    for chain in named.iter().filter(|chain| **chain < first) {
                        self.wait_for_end(id, reader, *chain);
                    }
                }
            }
        }
        if let Some(reads) = reads {
            reads.extend(named.into_iter().filter(|chain| *chain != own));
        }
    }

    fn wait_for_end(&mut self, id: RequestId, waiter: StageRef, chain: u32) {
        if let Some(chain) = self.request_mut(id).chain_mut(chain)
            && !chain.ended
            && chain.end_waiters.last() != Some(&waiter)
        {
            chain.end_waiters.push(waiter);
        }
    }

    fn note_reads(&mut self, id: RequestId, number: u32, mut reads: Vec<u32>) {
        reads.sort_unstable();
        reads.dedup();
        for read in &reads {
            if let Some(chain) = self.request_mut(id).chain_mut(*read) {
                chain.readers += 1;
            }
        }
        if let Some(chain) = self.request_mut(id).chain_mut(number) {
            chain.reads = reads;
        }
    }

    /// A chain follows another: its root is the one with a stop at the end of the line, if there is any.
    fn follow(&mut self, id: RequestId, graph: &UnfoldedGrowth, number: u32, like: u32) {
        let request = self.request(id);
        let mut leader = like;
        for _ in 0..=graph.chains.len() {
            let Some(chain) = request.chain(leader) else { return };
            if chain.stop_stage.is_some() {
                break;
            }
            let local = leader.checked_sub(graph.first_chain).and_then(|local| graph.chains.get(local as usize));
            match (chain.root, local.and_then(|chain| chain.length.like)) {
                (Some(root), _) => leader = root,
                (None, Some(next)) => leader = next,
                (None, None) => return,
            }
        }
        let Some(root) = request.chain(leader) else { return };
        let (end, over, stop_lane) = (root.end, root.ended, root.stop_stage.map(|stage| root.lane(stage)));
        let Some(own) = request.chain(number) else { return };
        let stages = own.stages();
        if let Some(root) = self.request_mut(id).chain_mut(leader).filter(|root| !root.ended) {
            root.followers.push(number);
        }
        if let Some(stop_lane) = stop_lane.filter(|_| !over) {
            let followers = (0..stages).map(|stage| (StageRef { chain: number, stage }, Affine::EVERY));
            self.lane_mut(stop_lane).readers.extend(followers);
        }
        if let Some(own) = self.request_mut(id).chain_mut(number) {
            (own.root, own.stops) = (Some(leader), true);
        }
        self.end_at(id, number, end);
    }

    /// First look at every node of a growth.
    pub(crate) fn start_growth(&mut self, id: RequestId, graph: &UnfoldedGrowth) {
        for local in 0..graph.chains.len() as u32 {
            for stage in 0..graph.chains[local as usize].stages.len() as u32 {
                let Some(chain) = self.request(id).chain(graph.first_chain + local).filter(|chain| !chain.cancelled) else { continue };
                let free = chain.root.is_none() && graph.chains[local as usize].stages[stage as usize].depends.is_empty();
                let lane = chain.lane(stage);
                match &self.lane(lane).progress {
                    Progress::Each(_) if free => self.set_run_ready(lane, 0, self.lane(lane).limit, None),
                    Progress::Front(_) if free => self.set_ready(lane, 0, None),
                    _ => self.look_at_all(lane),
                }
            }
        }
    }

    /// A node was submitted.
    pub(crate) fn after_queued(&mut self, lane: LaneId, step: u32, worker: WorkerId) {
        let place = self.lane(lane);
        if !place.plain {
            self.tell(lane, step);
        } else if step + 1 < place.limit {
            self.set_ready(lane, step + 1, Some(worker));
        }
        self.tell_end(lane);
    }

    /// A node is complete.
    pub(crate) fn after_done(&mut self, lane: LaneId, step: u32) {
        let place = self.lane(lane);
        if !place.plain {
            self.tell(lane, step);
        } else if place.flying == 0 && step + 1 < place.limit {
            self.set_ready(lane, step + 1, None);
        }
        self.tell_end(lane);
    }

    /// Looks again at whoever waits for a node.
    fn tell(&mut self, lane: LaneId, step: u32) {
        let place = self.lane(lane);
        let (id, number, stage) = (place.request, place.chain, place.stage);
        let Some(graph) = self.request(id).growth(place.growth).map(|growth| Arc::clone(&growth.graph)) else { return };
        let local = (number - graph.first_chain) as usize;
        for (index, sibling) in graph.chains[local].stages.iter().enumerate() {
            let Some(other) = self.request(id).chain(number).map(|chain| chain.lane(index as u32)) else { continue };
            for depends in &sibling.depends {
                match depends {
                    Dependency::Previous { stage: named } if *named == stage => self.look_at(other, step + 1),
                    Dependency::Sibling { stage: named } if *named == stage => self.look_at(other, step),
                    _ => {}
                }
            }
        }
        let bound = graph.chains[local].length.bound;
        for index in 0..self.lane(lane).readers.len() {
            let (reader, at) = self.lane(lane).readers[index];
            let Some(reader) = self.held(id, reader) else { continue };
            match namers(at, bound, step) {
                Namers::Nobody => {}
                Namers::Step(named) => self.look_at(reader, named),
                Namers::Everybody => self.look_at_all(reader),
            }
        }
        let successors = &graph.chains[local].stages[stage as usize].successors;
        if let Some([from, to]) = successors.offsets.get(step as usize..step as usize + 2) {
            self.look_at_named(id, &successors.targets[*from as usize..*to as usize]);
        }
    }

    /// Looks again at who waits for a chain's end, if something changed for them.
    pub(crate) fn tell_end(&mut self, lane: LaneId) {
        let (id, number) = (self.lane(lane).request, self.lane(lane).chain);
        let request = self.request(id);
        let Some(chain) = request.chain(number).filter(|chain| !chain.end_waiters.is_empty() && !chain.ended) else { return };
        let Status::Queued(worker) = self.end_status(request, number) else { return };
        if chain.end_seen != Some(worker) {
            if let Some(chain) = self.request_mut(id).chain_mut(number) {
                chain.end_seen = Some(worker);
            }
            self.tell_end_waiters(id, number);
        }
    }

    pub(crate) fn tell_end_waiters(&mut self, id: RequestId, number: u32) {
        for index in 0..self.request(id).chain(number).map_or(0, |chain| chain.end_waiters.len()) {
            let waiter = self.request(id).chain(number).map(|chain| chain.end_waiters[index]);
            if let Some(waiter) = waiter.and_then(|waiter| self.held(id, waiter)) {
                self.look_at_all(waiter);
            }
        }
    }

    /// Looks again at everybody who may name a step of this lane: its chain's end is known.
    pub(crate) fn tell_readers(&mut self, lane: LaneId) {
        let Lane { request: id, chain: number, stage, growth, .. } = *self.lane(lane);
        for index in 0..self.lane(lane).readers.len() {
            let (reader, _) = self.lane(lane).readers[index];
            if let Some(reader) = self.held(id, reader) {
                self.look_at_all(reader);
            }
        }
        let Some(graph) = self.request(id).growth(growth).map(|growth| Arc::clone(&growth.graph)) else { return };
        let targets = &graph.chains[(number - graph.first_chain) as usize].stages[stage as usize].successors.targets;
        self.look_at_named(id, targets);
    }

    fn look_at_named(&mut self, id: RequestId, targets: &[(u32, u32, u32)]) {
        for (chain, stage, step) in targets {
            if let Some(other) = self.held(id, StageRef { chain: *chain, stage: *stage }) {
                self.look_at(other, *step);
            }
        }
    }

    /// The lane of a stage, if it has not been given back.
    fn held(&self, id: RequestId, stage: StageRef) -> Option<LaneId> {
        self.request(id).chain(stage.chain).filter(|chain| !chain.gone).map(|chain| chain.lane(stage.stage))
    }

    /// Looks at one node again.
    fn look_at(&mut self, lane: LaneId, step: u32) {
        let place = self.lane(lane);
        match &place.progress {
            Progress::Front(front) => {
                let step = front.queued;
                if step < place.limit && front.ready.is_none_or(|ready| ready.only.is_some()) && self.handed_over(lane, 0) {
                    self.judge(lane, step, self.weigh(lane, step, true));
                }
            }
            Progress::Each(nodes) => {
                if step < place.limit && may_become_ready(nodes.states[step as usize]) {
                    self.judge(lane, step, self.weigh(lane, step, true));
                }
            }
            Progress::Grouped(grouped) => {
                if step >= place.limit || !may_become_ready(grouped.nodes.states[step as usize]) {
                    return;
                }
                let group = grouped.group(step);
                let subgraph = &grouped.subgraphs[group as usize];
                let members = subgraph.members;
                let was_handed = !self.subgraphs() || subgraph.handed == members.1;
                if was_handed {
                    self.judge(lane, step, self.weigh(lane, step, true));
                } else if self.handed_over(lane, group) {
                    self.look_at_members(lane, members);
                }
            }
        }
    }

    fn look_at_members(&mut self, lane: LaneId, members: (u32, u32)) {
        for index in members.0..members.1 {
            let Progress::Grouped(grouped) = &self.lane(lane).progress else { return };
            let step = grouped.members[index as usize];
            if step < self.lane(lane).limit && may_become_ready(grouped.nodes.states[step as usize]) {
                self.judge(lane, step, self.weigh(lane, step, true));
            }
        }
    }

    /// Looks at every node of a lane again.
    pub(crate) fn look_at_all(&mut self, lane: LaneId) {
        match &self.lane(lane).progress {
            Progress::Front(_) => self.look_at(lane, 0),
            Progress::Grouped(grouped) => {
                for group in 0..grouped.subgraphs.len() {
                    let Progress::Grouped(grouped) = &self.lane(lane).progress else { return };
                    let members = grouped.subgraphs[group].members;
                    if self.handed_over(lane, group as u32) {
                        self.look_at_members(lane, members);
                    }
                }
            }
            Progress::Each(_) => self.look_at_each(lane),
        }
    }

    /// As `look_at_all`; neighbours that become ready together are listed as one run.
    fn look_at_each(&mut self, lane: LaneId) {
        let mut run: Option<(u32, Option<WorkerId>)> = None;
        for step in 0..=self.lane(lane).limit {
            let Progress::Each(nodes) = &self.lane(lane).progress else { return };
            let verdict = match nodes.states.get(step as usize) {
                Some(state) if step < self.lane(lane).limit && may_become_ready(*state) => self.weigh(lane, step, true),
                _ => Verdict::No,
            };
            let fresh = matches!(nodes.states.get(step as usize), Some(NodeState::Waiting));
            let only = match verdict {
                Verdict::Ready(only) if fresh => Some(only),
                _ => None,
            };
            if let Some((from, before)) = run
                && only != Some(before)
            {
                self.set_run_ready(lane, from, step, before);
                run = None;
            }
            match only {
                Some(only) => run = Some(run.unwrap_or((step, only))),
                None => self.judge(lane, step, verdict),
            }
        }
    }

    fn judge(&mut self, lane: LaneId, step: u32, verdict: Verdict) {
        match verdict {
            Verdict::No => {}
            Verdict::Ready(only) => self.set_ready(lane, step, only),
            Verdict::Beyond(chain) if self.subgraphs() || self.certain(lane, step) => {
                self.doom(self.lane(lane).request, Failure::BeyondEnd { chain });
            }
            Verdict::Beyond(_) => {}
        }
    }

    /// Whether all outside inputs of a subgraph are complete, so that the scheduler may have it. Looks on from where it was left.
    fn handed_over(&mut self, lane: LaneId, group: u32) -> bool {
        if !self.subgraphs() || self.lane(lane).plain {
            return true;
        }
        loop {
            let place = self.lane(lane);
            let step = match &place.progress {
                Progress::Front(front) if front.handed >= place.limit => return true,
                Progress::Front(front) => front.handed,
                Progress::Each(_) => return true,
                Progress::Grouped(grouped) => {
                    let subgraph = &grouped.subgraphs[group as usize];
                    if subgraph.handed == subgraph.members.1 {
                        return true;
                    }
                    grouped.members[subgraph.handed as usize]
                }
            };
            if step < place.limit {
                match self.weigh(lane, step, false) {
                    Verdict::Ready(_) => {}
                    verdict => {
                        self.judge(lane, step, verdict);
                        return false;
                    }
                }
            }
            match &mut self.lane_mut(lane).progress {
                Progress::Front(front) => front.handed += 1,
                Progress::Grouped(grouped) => grouped.subgraphs[group as usize].handed += 1,
                Progress::Each(_) => return true,
            }
        }
    }
}

const fn may_become_ready(state: NodeState) -> bool {
    match state {
        NodeState::Waiting => true,
        NodeState::Ready(ready) => ready.only.is_some(),
        NodeState::Queued(_) | NodeState::Done | NodeState::Dropped => false,
    }
}

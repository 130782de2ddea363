//! One input of one stage: where its rows come from, whether they fit, and what that makes the node wait for.

use super::chain::{Building, same_row, shape_text};
use super::draft::{Draft, DraftSeries, Found, HeldRows, Reach, Whereabouts, limit};
use super::error::GraphFault;
use crate::cell::Port;
use crate::datatype::Datatype;
use crate::graph::{self, Affine, Node, OutputRef, Span, SpanOf};
use crate::resolve::{ShapeText, short};
use crate::tensor::Tensor;
use crate::unfolded::{Dependency, Retention, Run, RunOf, Source, WINDOW_ROWS_MAX};

/// Spans of all inputs of a stage, at most.
const SPANS_MAX: usize = 256;
/// A span may begin so far from row 0, so that sums of its numbers fit.
const FAR: i64 = 1 << 53;

/// One input that is being checked.
pub(super) struct Reader<'d, 'a, 'b> {
    pub(super) draft: &'d mut Draft<'a>,
    pub(super) building: &'b mut Building,
    pub(super) stage: usize,
    pub(super) input: usize,
    pub(super) port: &'a Port,
}

impl<'a> Reader<'_, 'a, '_> {
    pub(super) fn check(&mut self, source: graph::Source) -> Result<Source, GraphFault> {
        if self.port.ragged && !matches!(source, graph::Source::Many(_)) {
            return Err(GraphFault::WantsSpans);
        }
        match source {
            graph::Source::Zeros => Ok(Source::Zeros),
            graph::Source::Literal(tensor) => self.literal(tensor),
            graph::Source::Ints(numbers) => self.ints(numbers),
            graph::Source::Index(at) => self.index(at),
            graph::Source::Rows { tensor, at } => self.rows(tensor, at),
            graph::Source::Frames { tensor, at } => self.frames(tensor, at),
            graph::Source::Steps { of, at } => self.steps(of, at),
            graph::Source::Last(of) => self.last(of),
            graph::Source::Nodes { stage, output, of } => self.nodes(stage, output, of),
            graph::Source::Sibling { stage, output } => self.sibling(stage, output),
            graph::Source::Many(spans) if self.port.ragged => self.spans(&spans),
            graph::Source::Many(spans) => self.many(&spans),
        }
    }

    /// Steps in which the source is read: with a feedback only the first.
    fn steps_read(&self) -> u32 {
        if self.building.stages[self.stage].inputs[self.input].feedback.is_some() { 1 } else { self.building.bound }
    }

    fn depend(&mut self, dependency: Dependency) {
        self.building.stages[self.stage].depends.push(dependency);
    }

    /// Waits for a line. Of parallel lines only the foremost is kept.
    fn depend_through(&mut self, chain: u32, stage: u32, at: Affine) {
        let depends = &mut self.building.stages[self.stage].depends;
        let parallel = depends.iter_mut().find_map(|dependency| match dependency {
            Dependency::Through { chain: of, stage: known, at: line } if (*of, *known, line.stride) == (chain, stage, at.stride) => {
                Some(line)
            }
            _ => None,
        });
        match parallel {
            Some(line) => line.first = line.first.max(at.first),
            None => depends.push(Dependency::Through { chain, stage, at }),
        }
    }

    fn literal(&self, tensor: Tensor) -> Result<Source, GraphFault> {
        if tensor.datatype != self.port.datatype {
            return Err(GraphFault::Datatype { wanted: self.port.datatype, given: tensor.datatype });
        }
        if !same_shape(self.port, &tensor.shape) {
            return Err(GraphFault::Shape { wanted: shape_text(&self.port.shape), given: ShapeText::row(tensor.shape) });
        }
        let broken_bool = tensor.datatype == Datatype::Bool && tensor.data.iter().any(|byte| *byte > 1);
        if !tensor.is_consistent() || broken_bool {
            return Err(GraphFault::Inconsistent { name: short(&tensor.name) });
        }
        Ok(Source::Literal(tensor.data.into_boxed_slice()))
    }

    fn ints(&self, numbers: Vec<i64>) -> Result<Source, GraphFault> {
        let (least, most) = self.number_range()?;
        let wanted = self.steps_read();
        if numbers.len() != wanted as usize {
            return Err(GraphFault::ElementCount { given: numbers.len(), wanted });
        }
        match numbers.iter().position(|number| !(least..=most).contains(number)) {
            Some(step) => Err(GraphFault::NumberRange { step: step as u32, number: numbers[step] }),
            None => Ok(Source::Ints(numbers)),
        }
    }

    fn index(&self, at: Affine) -> Result<Source, GraphFault> {
        let (_, most) = self.number_range()?;
        if at.from_end && self.building.may_stop {
            return Err(GraphFault::OwnEnd);
        }
        let count = if at.from_end { u64::from(self.building.bound) } else { most.cast_unsigned().min(u64::from(u32::MAX)) + 1 };
        self.affine("number", at, count, at.from_end).map(Source::Index)
    }

    /// What the port's datatype holds, if it takes numbers.
    fn number_range(&self) -> Result<(i64, i64), GraphFault> {
        match (self.port.datatype, self.port.shape.as_slice()) {
            (Datatype::Int64, [] | [1]) => Ok((i64::MIN, i64::MAX)),
            (Datatype::Int32, [] | [1]) => Ok((i64::from(i32::MIN), i64::from(i32::MAX))),
            _ => Err(GraphFault::NotANumberPort),
        }
    }

    fn rows(&self, number: u32, at: Affine) -> Result<Source, GraphFault> {
        let at = self.affine("row", at, self.rows_like(self.port, number)?, true)?;
        Ok(Source::Rows { tensor: number, at })
    }

    /// How many rows a tensor has, each of which a port takes.
    fn rows_like(&self, port: &Port, number: u32) -> Result<u64, GraphFault> {
        let tensor = self.draft.tensor(number)?;
        if tensor.datatype != port.datatype {
            return Err(GraphFault::Datatype { wanted: port.datatype, given: tensor.datatype });
        }
        let Some((rows, row)) = tensor.shape.split_first() else { return Err(GraphFault::Scalar { name: short(&tensor.name) }) };
        if !same_shape(port, row) {
            return Err(GraphFault::Shape { wanted: shape_text(&port.shape), given: ShapeText::row(row.iter().copied()) });
        }
        Ok(*rows as u64)
    }

    fn frames(&self, number: u32, at: Affine) -> Result<Source, GraphFault> {
        let tensor = self.draft.tensor(number)?;
        if tensor.datatype != self.port.datatype {
            return Err(GraphFault::Datatype { wanted: self.port.datatype, given: tensor.datatype });
        }
        let elements = tensor.shape.iter().product::<usize>();
        let at = self.line("element", at, Some(elements as u64))?;
        self.check_reach("element", at, number, |reach| reach.elements)?;
        Ok(Source::Frames { tensor: number, at })
    }

    fn many(&mut self, spans: &[Span]) -> Result<Source, GraphFault> {
        let (wanted, row) = match self.port.shape.split_first() {
            Some((wanted, row)) if !row.is_empty() => (u64::from(*wanted), row),
            _ => return Err(GraphFault::NoWindow { shape: shape_text(&self.port.shape) }),
        };
        limit("rows of a window", wanted as usize, WINDOW_ROWS_MAX as usize)?;
        self.charge_spans(spans.len())?;
        let mut given = 0;
        let mut runs = Vec::with_capacity(spans.len());
        for span in spans {
            let count = span.count.ok_or(GraphFault::CountMissing)?;
            if count == 0 || span.every == 0 {
                return Err(GraphFault::EmptySpan);
            }
            given += u64::from(count);
            if given > wanted {
                break;
            }
            self.draft.charge_edges(self.steps_read().saturating_mul(count))?;
            runs.push(self.run(*span, count, row)?.0);
        }
        if given == wanted { Ok(Source::Window(runs.into())) } else { Err(GraphFault::SpanCount { given, wanted }) }
    }

    /// Spans of all inputs of a stage are bounded, because what a node waits for is looked at again and again.
    fn charge_spans(&self, more: usize) -> Result<(), GraphFault> {
        let others: usize = self.building.stages[self.stage].inputs.iter().map(|input| input.source.runs().len()).sum();
        limit("spans", others.saturating_add(more), SPANS_MAX)
    }

    /// Of a ragged input.
    fn spans(&mut self, spans: &[Span]) -> Result<Source, GraphFault> {
        self.charge_spans(spans.len())?;
        let mut runs = Vec::with_capacity(spans.len());
        let mut most = 0;
        for span in spans {
            let is_own = matches!(span.of, SpanOf::Chain(of) if of.chain == self.building.chain);
            if is_own && span.count.is_none() {
                return Err(GraphFault::OwnSpanWhole);
            }
            let count = span.count.unwrap_or(u32::MAX);
            if count == 0 || span.every == 0 {
                return Err(GraphFault::EmptySpan);
            }
            self.draft.charge_edges(self.steps_read())?;
            let (run, rows) = self.run(*span, count, &self.port.shape)?;
            most += rows.min(u64::from(count));
            runs.push(run);
        }
        let cell = &self.draft.model.cells[self.building.stages[self.stage].cell as usize];
        let limit = cell.span_rows_most();
        if most > limit {
            return Err(GraphFault::Limit { what: "rows in its spans", count: most, limit });
        }
        if let Some(like) = cell.spans.get(self.input).copied().flatten().filter(|like| (*like as usize) < self.input) {
            self.check_alike(&runs, like)?;
        }
        Ok(Source::Span(runs.into()))
    }

    /// Whether spans have as many rows as those of an earlier input, at every step.
    fn check_alike(&self, runs: &[Run], like: u32) -> Result<(), GraphFault> {
        let others = self.building.stages[self.stage].inputs[like as usize].source.runs();
        let rows = |tensor: u32| self.draft.tensor(tensor).map(|tensor| tensor.shape.first().copied());
        let is_alike = |(one, other): (&Run, &Run)| {
            let is_as_long = match (one.of, other.of) {
                (RunOf::Chain { chain, stage, .. }, RunOf::Chain { chain: same, stage: of, .. }) => {
                    chain == same && self.rows_before(chain, stage) == self.rows_before(chain, of)
                }
                (RunOf::Tensor(one), RunOf::Tensor(other)) => {
                    rows(one)? == rows(other)? && self.draft.reach(one).rows == self.draft.reach(other).rows
                }
                _ => false,
            };
            Ok(is_as_long && (one.at, one.every, one.count) == (other.at, other.every, other.count))
        };
        let alike = runs.iter().zip(others).map(is_alike).collect::<Result<Vec<_>, GraphFault>>()?;
        let is_alike = runs.len() == others.len() && alike.into_iter().all(|alike| alike);
        if is_alike { Ok(()) } else { Err(GraphFault::SpansDiffer { input: like }) }
    }

    /// Rows of a stage before its chain's step 0.
    fn rows_before(&self, chain: u32, stage: u32) -> u32 {
        if chain == self.building.chain {
            return self.own_rows(stage).before;
        }
        self.draft.find_chain(chain).map_or(0, |found| self.draft.held_rows(found, stage).before)
    }

    fn own_rows(&self, stage: u32) -> HeldRows {
        DraftSeries::rows(self.building.series.as_ref(), stage, self.building.bound)
    }

    /// The first number of a line at the step at which it is least, and that step.
    fn least(&self, at: Affine) -> (u32, i64) {
        let steps = [0, self.steps_read() - 1].map(|step| (step, at.number(step).unwrap_or(i64::MIN)));
        steps[usize::from(steps[1].1 < steps[0].1)]
    }

    /// Refuses a row of a series that this growth may overwrite. `at` is the line of first rows.
    fn check_held(&self, at: Affine, rows: HeldRows, bound: u32) -> Result<(), GraphFault> {
        let (step, number, from) = if at.from_end {
            // The oldest held row is counted from the same end.
            let (step, number) = self.least(Affine { first: -1 - at.first, stride: at.stride.saturating_neg(), from_end: false });
            (step, number, -i64::from(rows.places))
        } else {
            let (step, number) = self.least(at);
            (step, number, rows.from)
        };
        let is_gone = if at.from_end { number < from } else { rows.is_gone(number) && number < i64::from(bound) };
        if is_gone { Err(GraphFault::RowGone { step, number, from }) } else { Ok(()) }
    }

    /// Refuses a line that begins in an earlier tensor of the name that is no longer held.
    fn check_reach(&self, what: &'static str, at: Affine, tensor: u32, of: impl Fn(Reach) -> u64) -> Result<(), GraphFault> {
        let reach = self.draft.reach(tensor);
        let ((step, number), from) = (self.least(at), -i64::try_from(of(reach)).unwrap_or(i64::MAX));
        if reach.is_cut && number < from { Err(GraphFault::TensorRowGone { what, step, number, from }) } else { Ok(()) }
    }

    /// A run, and how many rows its origin has at most.
    fn run(&mut self, span: Span, mut count: u32, row: &[u32]) -> Result<(Run, u64), GraphFault> {
        let wanted = Port { shape: row.to_vec(), ragged: false, ..self.port.clone() };
        // One to the end has no last row.
        let reach = if span.count.is_some() { i64::from(span.every).saturating_mul(i64::from(count - 1)).min(FAR) } else { 0 };
        let last_row = |at: Affine| Affine { first: at.first + reach, ..at };
        let (of, at, rows) = match span.of {
            SpanOf::Tensor(number) => {
                let rows = self.rows_like(&wanted, number)?;
                let mut at = self.line("row", span.at, Some(rows))?;
                self.check_reach("row", at, number, |reach| reach.rows)?;
                let before = self.draft.reach(number).rows;
                let [least, end] = [before, rows].map(|rows| i64::try_from(rows).unwrap_or(i64::MAX));
                if span.count.is_none() && at.stride == 0 && span.every == 1 {
                    at.first = at.first.max(-least);
                }
                if self.port.ragged {
                    // The number of rows is known here. The scheduler does not see tensors.
                    let most = end.saturating_sub(self.least(at).1).max(0).unsigned_abs().div_ceil(span.every.into());
                    count = count.min(u32::try_from(most).unwrap_or(u32::MAX));
                }
                (RunOf::Tensor(number), at, rows.saturating_add(before))
            }
            SpanOf::Chain(of) => {
                let is_own = of.chain == self.building.chain;
                let (at, rows) = if is_own {
                    same_row(&wanted, self.draft.own_output(self.building, of.stage, of.output)?)?;
                    if span.at.from_end {
                        return Err(GraphFault::OwnSpanFromEnd);
                    }
                    let at = self.line("step", span.at, None)?;
                    let rows = self.own_rows(of.stage);
                    self.check_held(at, rows, self.building.bound)?;
                    self.wait_for_own_rows(of.stage, last_row(at))?;
                    (at, u64::from(self.building.bound) + u64::from(rows.before))
                } else {
                    let found = self.draft.find(of)?;
                    same_row(&wanted, found.port)?;
                    let at = self.line("step", span.at, (!found.may_stop).then_some(found.bound.into()))?;
                    self.check_held(at, found.rows, found.bound)?;
                    match span.count {
                        Some(_) => self.wait_for_rows(of, found, last_row(at)),
                        None => self.wait_for_all_rows(of, found),
                    }
                    (at, u64::from(found.bound) + u64::from(found.rows.before))
                };
                (RunOf::Chain { chain: of.chain, stage: of.stage, output: of.output }, at, rows)
            }
        };
        Ok((Run { of, at, every: span.every, count }, rows))
    }

    fn wait_for_all_rows(&mut self, OutputRef { chain, stage, .. }: OutputRef, found: Found<'a>) {
        if let Whereabouts::Here(local) = found.at {
            self.draft.retain(local, stage, Retention::All);
        }
        self.depend(Dependency::End { chain });
    }

    /// Waits for the rows of a run over another chain. `at` is the run's last row.
    fn wait_for_rows(&mut self, OutputRef { chain, stage, .. }: OutputRef, found: Found<'a>, at: Affine) {
        let end = Dependency::End { chain };
        let Whereabouts::Here(local) = found.at else { return self.depend(end) };
        self.draft.retain(local, stage, Retention::All);
        let (first, last) = (at.number(0), at.number(self.steps_read() - 1));
        // Rows before step 0 are there when the continued chain has ended.
        if let Some(continued) = self.draft.chains[local].continues.filter(|_| first < Some(0) || last < Some(0)) {
            self.depend(Dependency::End { chain: continued });
        }
        let root = self.draft.chains[local].length.like.unwrap_or(chain);
        // Whether a later step of a chain that may stop will be executed is known at its end.
        let keeps_step = first <= Some(0) && last <= Some(i64::from(self.steps_read() - 1)) && self.building.like == Some(root);
        if found.may_stop && !keeps_step || at.from_end {
            self.depend(end);
        } else if first >= Some(0) || last >= Some(0) {
            self.depend_through(chain, stage, at);
        }
    }

    /// Waits for the rows of a run over this chain's own steps. `at` is the run's last row: an earlier
    /// step, or the same step of an earlier stage.
    fn wait_for_own_rows(&mut self, stage: u32, at: Affine) -> Result<(), GraphFault> {
        let ahead = i64::from((stage as usize) < self.stage);
        let last = self.steps_read() - 1;
        for step in [0, last] {
            let named = at.number(step).unwrap_or(i64::MAX);
            if named >= i64::from(step) + ahead {
                return Err(GraphFault::OwnSpan { step, named });
            }
        }
        self.building.retain(stage, Retention::All);
        if at.number(0) >= Some(0) || at.number(last) >= Some(0) {
            self.depend_through(self.building.chain, stage, at);
        }
        Ok(())
    }

    /// Checks that a line's numbers do not overflow. Counts it from the front if the count is known.
    fn line(&self, what: &'static str, at: Affine, count: Option<u64>) -> Result<Affine, GraphFault> {
        let last = self.steps_read() - 1;
        for step in [0, last] {
            if at.number(step).is_none_or(|number| number.unsigned_abs() > FAR.unsigned_abs()) {
                return Err(GraphFault::Far { what, step });
            }
        }
        let stride = if last == 0 { 0 } else { at.stride };
        match count.filter(|_| at.from_end) {
            None => Ok(Affine { stride, ..at }),
            Some(count) => {
                let stride = stride.checked_neg().ok_or(GraphFault::Far { what, step: last })?;
                Ok(Affine { first: count as i64 - 1 - at.first, stride, from_end: false })
            }
        }
    }

    fn steps(&mut self, of: OutputRef, at: Affine) -> Result<Source, GraphFault> {
        let found = self.found(of, Retention::All)?;
        let at = self.affine("step", at, u64::from(found.bound), !found.may_stop)?;
        self.check_held(at, found.rows, found.bound)?;
        let OutputRef { chain, stage, output } = of;
        let waits_for_end = found.at == Whereabouts::Earlier || at.from_end;
        self.depend(if waits_for_end { Dependency::End { chain } } else { Dependency::Step { chain, stage, at } });
        Ok(Source::Steps { chain, stage, output, at })
    }

    fn last(&mut self, of: OutputRef) -> Result<Source, GraphFault> {
        let found = self.found(of, Retention::Double)?;
        let last = Affine { first: i64::from(found.bound) - 1, stride: 0, from_end: false };
        self.check_held(last, found.rows, found.bound)?;
        let OutputRef { chain, stage, output } = of;
        self.depend(Dependency::End { chain });
        Ok(Source::Last { chain, stage, output })
    }

    /// An output of an earlier chain, which fits and will be held.
    fn found(&mut self, of: OutputRef, retention: Retention) -> Result<Found<'a>, GraphFault> {
        let found = self.draft.find(of)?;
        same_row(self.port, found.port)?;
        self.draft.charge_edges(self.steps_read())?;
        if let Whereabouts::Here(local) = found.at {
            let facts = self.draft.facts[local];
            let enough = retention == Retention::Double && facts.bound > 2 && facts.double >> of.stage & 1 == 1;
            self.draft.retain(local, of.stage, if enough { Retention::Double } else { Retention::All });
        }
        Ok(found)
    }

    fn sibling(&mut self, stage: u32, output: u32) -> Result<Source, GraphFault> {
        if stage as usize >= self.stage {
            return Err(GraphFault::NotEarlierStage { stage });
        }
        same_row(self.port, self.draft.own_output(self.building, stage, output)?)?;
        self.draft.charge_edges(self.steps_read())?;
        self.depend(Dependency::Sibling { stage });
        Ok(Source::Sibling { stage, output })
    }

    fn nodes(&mut self, stage: u32, output: u32, of: Vec<Node>) -> Result<Source, GraphFault> {
        let wanted = self.steps_read();
        if of.len() != wanted as usize {
            return Err(GraphFault::ElementCount { given: of.len(), wanted });
        }
        self.draft.charge_edges(wanted)?;
        // What is known of the last other chain that was named, and of this one: trees go back and forth between the two.
        let (mut known, mut own) = (None, false);
        let mut here = false;
        for (step, node) in of.iter().enumerate() {
            if node.chain == self.building.chain {
                if !own {
                    self.named_own(stage, output)?;
                }
                own = true;
                if node.step as usize >= step {
                    return Err(GraphFault::NotEarlierStep { step: step as u32, named: node.step });
                }
                continue;
            }
            let (bound, rows) = match known {
                Some((chain, bound, rows)) if chain == node.chain => (bound, rows),
                _ => self.named_other(stage, output, node.chain, &mut here)?,
            };
            known = Some((node.chain, bound, rows));
            self.check_held(Affine { first: node.step.into(), stride: 0, from_end: false }, rows, bound)?;
            if node.step >= bound {
                return Err(GraphFault::NoStep { chain: node.chain, step: node.step, bound });
            }
        }
        let here = here || own;
        if here {
            self.depend(Dependency::Nodes { input: self.input as u32 });
        }
        Ok(Source::Nodes { stage, output, of })
    }

    /// Checks that this chain has a fitting output, and that it will be held.
    fn named_own(&mut self, stage: u32, output: u32) -> Result<(), GraphFault> {
        same_row(self.port, self.draft.own_output(self.building, stage, output)?)?;
        self.building.retain(stage, Retention::All);
        Ok(())
    }

    /// The same of another chain. Gives its bound and its held rows.
    fn named_other(&mut self, stage: u32, output: u32, chain: u32, here: &mut bool) -> Result<(u32, HeldRows), GraphFault> {
        let found = self.draft.find(OutputRef { chain, stage, output })?;
        same_row(self.port, found.port)?;
        match found.at {
            Whereabouts::Here(local) => {
                self.draft.retain(local, stage, Retention::All);
                *here = true;
            }
            Whereabouts::Earlier => self.depend(Dependency::End { chain }),
        }
        Ok((found.bound, found.rows))
    }

    /// Checks that every step read means a number below `count` (a line is in range if both its ends are), and counts from the front what
    /// can be.
    fn affine(&self, what: &'static str, at: Affine, count: u64, end_known: bool) -> Result<Affine, GraphFault> {
        let last = self.steps_read() - 1;
        for step in [0, last] {
            if at.at(step).is_none_or(|number| u64::from(number) >= count) {
                let number = at.number(step).unwrap_or(at.first);
                return Err(GraphFault::OutOfRange { what, step, number, count });
            }
        }
        let stride = if last == 0 { 0 } else { at.stride };
        if !(at.from_end && end_known) {
            return Ok(Affine { stride, ..at });
        }
        // Below the count, as was seen above.
        let first = count as i64 - 1 - at.first;
        match stride.checked_neg() {
            Some(stride) if first <= i64::from(u32::MAX) => Ok(Affine { first, stride, from_end: false }),
            _ => Err(GraphFault::OutOfRange { what, step: 0, number: at.first, count }),
        }
    }
}

fn same_shape(port: &Port, shape: &[usize]) -> bool {
    port.shape.len() == shape.len() && port.shape.iter().zip(shape).all(|(wanted, given)| *wanted as usize == *given)
}

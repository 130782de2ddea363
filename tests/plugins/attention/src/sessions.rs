//! The same models over a session, whose tokens come in parts. Each part goes on where the one before ended.

use cellwright_guest::prelude::*;
use cellwright_guest::{Cell, Sequence};

use crate::graphs::{self, Reading, of};
use crate::{Attention, Model, READ_MAX};

/// What the next part is told: chains and rows so far, the chain that read the last part, and a number that is the model's own.
#[derive(Clone, Copy, Default)]
struct State {
    chains: u32,
    rows: u32,
    reader: Option<u32>,
    own: Option<u32>,
}

impl State {
    fn read(bytes: &[u8]) -> Self {
        let numbers: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let some = |number: u32| number.checked_sub(1);
        Self { chains: numbers[0], rows: numbers[1], reader: some(numbers[2]), own: some(numbers[3]) }
    }

    fn written(self) -> Vec<u8> {
        let some = |number: Option<u32>| number.map_or(0, |number| number + 1);
        [self.chains, self.rows, some(self.reader), some(self.own)].into_iter().flat_map(u32::to_le_bytes).collect()
    }
}

impl Attention {
    pub fn first_part(&self, request: &Request) -> Result<Growth, Refusal> {
        self.part(request, State::default())
    }

    pub fn next(&self, state: &[u8], event: &Event, request: &Request) -> Result<Reaction, Refusal> {
        let state = State::read(state);
        Ok(Reaction::grow(match event {
            Event::Input(_) => self.part(request, state)?,
            Event::EndOfInput => self.end(state)?,
            Event::Values(_) => return Err(Refusal::Internal("nothing was watched".into())),
        }))
    }

    fn part(&self, request: &Request, state: State) -> Result<Growth, Refusal> {
        let ids = request.input("ids")?;
        let mut growth = GrowthBuilder::after(state.chains);
        let mut next = state;
        if let Model::Decoder([embed, middle, _]) = &self.model {
            // The last token is read by the chain that writes.
            let all: Vec<i64> = state.own.map(i64::from).into_iter().chain(ids.ints()?).collect();
            let [prompt @ .., last] = &all[..] else { return Err(Refusal::InvalidInput("there is no token".into())) };
            if !prompt.is_empty() {
                let reading = Reading::Part(state.reader);
                next.reader = Some(graphs::prompt(&mut growth, [embed, middle], (prompt, state.rows), reading));
                next.rows += prompt.len() as u32;
            }
            next.own = u32::try_from(*last).ok();
            if let Some(chain) = next.reader {
                for (cell, stage) in [embed, middle].into_iter().zip(0..) {
                    growth.keep(of(chain, stage, cell, "keys")).keep(of(chain, stage, cell, "values"));
                }
            }
        } else {
            let ids = ids.sequence(Int64, &[], READ_MAX)?;
            next.rows += ids.count;
            next.reader = Some(self.read_part(&mut growth, ids, state, &mut next));
        }
        next.chains = growth.chains();
        growth.await_input(request.end()).state(next.written());
        Ok(growth.finish())
    }

    /// Reads tokens, answers what can be answered now, and keeps what is needed later. Gives the chain that reads.
    fn read_part(&self, growth: &mut GrowthBuilder, ids: Sequence, state: State, next: &mut State) -> u32 {
        let reading = Reading::Part(state.reader);
        match &self.model {
            Model::Luong([reader, ..]) | Model::Pooling([reader, _]) => {
                let read = graphs::read(growth, reader, ids, reading);
                growth.keep(of(read, 0, reader, "h"));
                read
            }
            Model::Bahdanau([reader, ..]) => {
                let read = graphs::read(growth, reader, ids, reading);
                growth.keep(of(read, 0, reader, "h")).keep(of(read, 0, reader, "known"));
                read
            }
            Model::Transducer([reader, step], most) => {
                let read = graphs::read(growth, reader, ids, reading);
                let frames = state.rows..next.rows;
                let before = state.own.map(|chain| of(chain, 0, step, "before"));
                let said = graphs::transduced(growth, step, (of(read, 0, reader, "known"), frames), *most, before);
                growth.keep(of(read, 0, reader, "h")).keep(of(read, 0, reader, "known")).keep(said.output("before"));
                growth.output_all("y", said.output("y"));
                next.own = Some(said.number);
                read
            }
            Model::Local(cells) => {
                let y = graphs::local(growth, cells, ids, reading);
                growth.output_all("y", y);
                growth.keep(of(y.chain, 0, &cells[0], "keys")).keep(of(y.chain, 0, &cells[0], "values"));
                y.chain
            }
            Model::Decoder(_) => unreachable!("a prompt is read otherwise"),
        }
    }

    /// All input is there.
    fn end(&self, state: State) -> Result<Growth, Refusal> {
        let mut growth = GrowthBuilder::after(state.chains);
        let known = |reader: &Cell, output: &str| state.reader.map(|chain| of(chain, 0, reader, output));
        let missing = || Refusal::InvalidInput("there is no token".into());
        let y = match &self.model {
            Model::Decoder(cells) => {
                let token = state.own.ok_or_else(missing)?;
                graphs::written(&mut growth, cells, state.reader, (token.into(), state.rows))
            }
            Model::Luong([reader, step, attend]) => graphs::luong(&mut growth, step, attend, known(reader, "h").ok_or_else(missing)?),
            Model::Bahdanau([reader, attend, step]) => {
                let [h, known] = ["h", "known"].map(|output| known(reader, output));
                graphs::bahdanau(&mut growth, attend, step, [h.ok_or_else(missing)?, known.ok_or_else(missing)?])
            }
            Model::Pooling([reader, pool]) => graphs::pooling(&mut growth, pool, known(reader, "h").ok_or_else(missing)?),
            // All of it was answered.
            Model::Transducer(..) | Model::Local(_) => return Ok(growth.finish()),
        };
        growth.output_all("y", y);
        Ok(growth.finish())
    }
}

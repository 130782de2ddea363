//! A temporal convolution network over a signal: frames, then causal layers, of which one is dilated and has a way around it, then a layer that
//! looks ahead and takes every other step. As `tests/vectors/make.py` has it in PyTorch. With the parameter `session` the signal may come in
//! parts.

mod sessions;

use cellwright_guest::prelude::*;
use cellwright_guest::{Cell, ChainBuilder, Value};

const FRAME: u32 = 16;
const HOP: u32 = 8;
const FRAMES_MAX: u32 = 4096;

struct Convolution {
    frame: Cell,
    causal: Cell,
    dilated: Cell,
    ahead: Cell,
    is_session: bool,
}

impl Plugin for Convolution {
    fn describe(parameters: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
        let [features, hidden, outputs] = parameters.sizes(["features", "hidden", "outputs"])?;
        let is_session = parameters.truth_or("session", false)?;
        parameters.refuse_unknown()?;
        let mut model = ModelBuilder::new();
        model.input("audio", Fp32, &[-1]).output("y", Fp32, &[-1, i64::from(outputs)]);
        if is_session {
            model.live_max(sessions::LIVE_MAX);
        }
        let sum = |cell: &mut CellBuilder, rows: u32, row: u32, name: &str| -> Value {
            let x = cell.input("x", Fp32, &[rows, row]);
            let flat = cell.reshape(x, &[rows * row]);
            cell.linear(flat, name)
        };
        let frame = model.cell("frame", |cell| {
            let x = cell.input("x", Fp32, &[FRAME]);
            let y = cell.linear(x, "frame.");
            cell.output("y", y, Fp32, &[features]);
        });
        let causal = model.cell("causal", |cell| {
            let y = sum(cell, 3, features, "causal.");
            let y = cell.relu(y);
            cell.output("y", y, Fp32, &[hidden]);
        });
        let dilated = model.cell("dilated", |cell| {
            let y = sum(cell, 3, hidden, "dilated.");
            let y = cell.relu(y);
            let around = cell.input("around", Fp32, &[hidden]);
            let y = cell.add(y, around);
            cell.output("y", y, Fp32, &[hidden]);
        });
        let ahead = model.cell("ahead", |cell| {
            let y = sum(cell, 4, hidden, "ahead.");
            cell.output("y", y, Fp32, &[outputs]);
        });
        Ok((Self { frame, causal, dilated, ahead, is_session }, model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        if self.is_session {
            return self.first_part(request);
        }
        let audio = request.input("audio")?;
        let frames = audio.frames(Fp32, (FRAME, HOP), FRAMES_MAX)?;
        let Some(others) = frames.count.checked_sub(2) else { return Err(audio.refusal("has one frame, and the last layer takes two")) };
        let mut growth = GrowthBuilder::new();
        let y = self.layers(&mut growth, (frames.count, frames.forward()), |chain, _| chain)[2];
        // A kernel of 4 over one row of zeros on either side, every other step.
        let y = self.last_layer(&mut growth, others / 2 + 1, y.window(4).before(1).stride(2).source());
        growth.output_all("y", y);
        Ok(growth.finish())
    }

    fn resume(&self, state: &[u8], event: &Event, request: &Request) -> Result<Reaction, Refusal> {
        self.next(state, event, request)
    }
}

impl Convolution {
    /// The layers that see nothing ahead. `placed` is told each one's number.
    fn layers(
        &self,
        growth: &mut GrowthBuilder,
        (steps, frames): (u32, Source),
        placed: impl for<'g, 'c> Fn(ChainBuilder<'g, 'c>, usize) -> ChainBuilder<'g, 'c>,
    ) -> [OutputRef; 3] {
        let x = placed(growth.chain(steps).stage(&self.frame).input("x", frames), 0).add().output("y");
        let causal = growth.chain(steps).stage(&self.causal).input("x", x.window(3).source());
        let causal = placed(causal, 1).add().output("y");
        let dilated = growth.chain(steps).stage(&self.dilated);
        let dilated = dilated.input("x", causal.window(3).every(2).source()).input("around", causal.every());
        [x, causal, placed(dilated, 2).add().output("y")]
    }

    fn last_layer(&self, growth: &mut GrowthBuilder, steps: u32, rows: Source) -> OutputRef {
        growth.chain(steps).stage(&self.ahead).input("x", rows).add().output("y")
    }
}

export_plugin!(Convolution);

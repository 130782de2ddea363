//! A temporal convolution network over a signal: frames, then causal layers, of which one is dilated and has a way around it, then a layer that
//! looks ahead and takes every other step. As `tests/vectors/make.py` has it in PyTorch.

use cellwright_guest::prelude::*;
use cellwright_guest::{Cell, Value};

const FRAME: u32 = 16;
const HOP: u32 = 8;
const FRAMES_MAX: u32 = 4096;

struct Convolution {
    frame: Cell,
    causal: Cell,
    dilated: Cell,
    ahead: Cell,
}

impl Plugin for Convolution {
    fn describe(parameters: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
        let [features, hidden, outputs] = parameters.sizes(["features", "hidden", "outputs"])?;
        parameters.refuse_unknown()?;
        let mut model = ModelBuilder::new();
        model.input("audio", Fp32, &[-1]).output("y", Fp32, &[-1, i64::from(outputs)]);
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
        Ok((Self { frame, causal, dilated, ahead }, model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        let audio = request.input("audio")?;
        let frames = audio.frames(Fp32, (FRAME, HOP), FRAMES_MAX)?;
        let steps = frames.count;
        let Some(others) = steps.checked_sub(2) else { return Err(audio.refusal("has one frame, and the last layer takes two")) };
        let mut growth = GrowthBuilder::new();
        let x = growth.chain(steps).stage(&self.frame).input("x", frames.forward()).add().output("y");
        let causal = growth.chain(steps).stage(&self.causal).input("x", x.window(3).source()).add().output("y");
        let dilated = growth.chain(steps).stage(&self.dilated);
        let dilated = dilated.input("x", causal.window(3).every(2).source()).input("around", causal.every()).add().output("y");
        // A kernel of 4 over one row of zeros on either side, every other step.
        let ahead = growth.chain(others / 2 + 1).stage(&self.ahead);
        let y = ahead.input("x", dilated.window(4).before(1).stride(2).source()).add().output("y");
        growth.output_all("y", y);
        Ok(growth.finish())
    }
}

export_plugin!(Convolution);

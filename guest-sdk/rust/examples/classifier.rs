use cellwright_guest::prelude::*;

struct Classifier(u32, Cell, Cell);

impl Plugin for Classifier {
    fn describe(parameters: &Parameters, _: &Files) -> Result<(Self, Description), Refusal> {
        let (features, hidden, classes) =
            (parameters.positive("features")?, parameters.positive("hidden")?, parameters.positive("classes")?);
        let mut model = ModelBuilder::new();
        model.input("x", Datatype::Fp32, &[-1, features.into()]).output("logits", Datatype::Fp32, &[classes.into()]);
        let lstm = model.cell("lstm", |cell| {
            let x = cell.input("x", Datatype::Fp32, &[features]);
            cell.lstm(x, hidden, "lstm.");
        });
        let head = model.cell("head", |cell| {
            let h = cell.input("h", Datatype::Fp32, &[hidden]);
            let logits = cell.linear(h, "head.");
            cell.output("logits", logits, Datatype::Fp32, &[classes]);
        });
        Ok((Self(features, lstm, head), model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        let x = request.input("x")?.sequence(Datatype::Fp32, &[self.0], 4096)?;
        let mut growth = GrowthBuilder::new();
        let lstm = growth.chain(x.count).stage(&self.1).input("x", x.forward()).add();
        let head = growth.chain(1).stage(&self.2).input("h", lstm.output("h").last()).add();
        growth.output_last("logits", head.output("logits"));
        Ok(growth.finish())
    }
}

export_plugin!(Classifier);

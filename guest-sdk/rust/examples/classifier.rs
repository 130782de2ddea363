use cellwright_guest::prelude::*;

struct Classifier(u32, Cell, Cell);

impl Plugin for Classifier {
    fn describe(parameters: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
        let [features, hidden, classes] = parameters.sizes(["features", "hidden", "classes"])?;
        let mut model = ModelBuilder::new();
        model.input("x", Fp32, &[-1, features.into()]).output("logits", Fp32, &[classes.into()]);
        let lstm = model.lstm("lstm", features, hidden, "lstm.");
        let head = model.linear("head", hidden, classes, "head.");
        Ok((Self(features, lstm, head), model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        let x = request.input("x")?.sequence(Fp32, &[self.0], 4096)?;
        let mut growth = GrowthBuilder::new();
        let lstm = growth.chain(x.count).stage(&self.1).input("x", x.forward()).add();
        let head = growth.chain(1).stage(&self.2).input("x", lstm.output("h").last()).add();
        growth.output_last("logits", head.output("y"));
        Ok(growth.finish())
    }
}

export_plugin!(Classifier);

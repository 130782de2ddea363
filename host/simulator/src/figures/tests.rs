//! Whether the published values come out within the bounds that the figures state, and whether the
//! kept figures are those that come out.

use std::path::Path;

use super::*;

/// Makes a figure. Fails if a comparison does not hold, or if a kept file differs.
#[track_caller]
fn check(name: &str) {
    let figure = make(name, &mut || ()).unwrap().expect("a figure of that name");
    let off: Vec<&Compared> = figure.compared.iter().filter(|compared| !compared.holds()).collect();
    assert!(off.is_empty(), "figure {name}: {off:#?}");
    assert!(!figure.compared.is_empty() && !figure.pictures.is_empty(), "figure {name} shows nothing");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/figures");
    for (file, made) in figure.files() {
        let kept = std::fs::read_to_string(folder.join(&file)).unwrap_or_default();
        assert!(kept == made, "tests/figures/{file} is not what `cellwright-lab figures` writes");
    }
}

macro_rules! figures {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                check($name);
            }
        )*

        #[test]
        fn every_figure_is_checked() {
            assert_eq!(names().collect::<Vec<_>>(), [$($name),*]);
        }
    };
}

figures! {
    figure_5: "5";
    figure_7a: "7a";
    figure_7b: "7b";
    figure_8: "8";
    figure_9: "9";
    figure_11_with_fixed_lengths: "11-fixed";
    figure_11_up_to_50: "11-50";
    figure_11_up_to_100: "11-100";
    figure_13_on_2_devices: "13-2";
    figure_13_on_4_devices: "13-4";
    figure_14: "14";
    figure_15: "15";
    lazy_batching_of_resnet: "lazy-resnet";
    lazy_batching_of_gnmt: "lazy-gnmt";
    lazy_batching_of_transformer: "lazy-transformer";
    lazy_batching_of_deepspeech: "lazy-deepspeech";
    turbo_transformers_with_short_requests: "turbo-short";
    turbo_transformers_with_long_requests: "turbo-long";
    dva_batch_with_diverse_inputs: "dva-inputs";
    dva_batch_with_diverse_sizes: "dva-sizes";
    dva_batch_with_neither: "dva-neither";
    deadlines_of_lstms: "deadlines-lstm";
    deadlines_of_trees: "deadlines-trees";
}

#[test]
fn a_number_out_of_bounds_does_not_hold() {
    let compared = Compared::new("p90", "12", 13.3, "ms").within(10.8, 13.2);
    assert!(!compared.holds());
    assert!(Compared { ours: 13.2, ..compared }.holds());
}

// kv-select: each rule on hand-made masses

#include "kv-select.h"

#include "whisper-kv-view.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

static kv_select_params make_params(int rule, int budget) {
    return { rule, budget, 0.25f, 0.25f, 1, 0, {} };
}

static kv_selection run(const kv_select_params & params, const std::vector<float> & mass, int n_audio, int centre) {
    kv_selection out;
    CHECK(kv_select(params, { mass.data(), (int) mass.size(), n_audio, centre }, out), "rule %d selects", params.rule);
    return out;
}

typedef std::vector<int32_t> positions;

// whatever the rule: ascending, distinct, in range, within the budget
static void test_every_selection_is_sound() {
    std::vector<float> mass(1500);
    for (int i = 0; i < 1500; ++i) {
        mass[i] = (i*7919 % 1500)/1500.0f;
    }

    for (int rule = WHISPER_KV_RULE_AUDIO_ONLY; rule < WHISPER_KV_RULE_COUNT; ++rule) {
        for (const int budget : { 1, 2, 31, 96, 192, 255, 1499 }) {
            for (const int n_audio : { 1, 2, 50, 144, 145, 700, 1499, 1500 }) {
                for (const int centre : { -1, 0, n_audio/2, n_audio - 1 }) {
                    for (const float frac : { 0.0f, 0.25f, 1.0f }) {
                        auto params = make_params(rule, budget);
                        params.sink_fraction = frac;

                        const auto sel = run(params, mass, n_audio, centre);

                        const std::set<int32_t> distinct(sel.fixed.begin(), sel.fixed.end());

                        CHECK(distinct.size() == sel.fixed.size() && std::is_sorted(sel.fixed.begin(), sel.fixed.end()), "rule %d", rule);
                        CHECK(sel.fixed.empty() || (sel.fixed.front() >= 0 && sel.fixed.back() < 1500), "rule %d", rule);
                        CHECK(sel.window_lo >= 0 && sel.window_lo + sel.window_n <= n_audio, "rule %d: window %d+%d of %d", rule, sel.window_lo, sel.window_n, n_audio);
                        CHECK((int) sel.fixed.size() + sel.window_n <= kv_select_capacity(params, 1500), "rule %d: %zu+%d", rule, sel.fixed.size(), sel.window_n);
                    }
                }
            }
        }
    }
}

static void test_full_and_large_budgets_read_everything() {
    const std::vector<float> mass(100, 0.01f);
    kv_selection out;

    CHECK(!kv_select(make_params(WHISPER_KV_RULE_FULL,          10), { mass.data(), 100, 50, 0 }, out), "full");
    CHECK(!kv_select(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 100), { mass.data(), 100, 50, 0 }, out), "budget = n_ctx");
    CHECK( kv_select(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 99), { mass.data(), 100, 50, 0 }, out), "budget < n_ctx");
}

static void test_gives_up_where_nothing_is_left_to_read() {
    const std::vector<float> mass(40, 0.5f);

    auto params = make_params(WHISPER_KV_RULE_PADSINK_TRACK, 8);
    params.sink_fraction = 1.0f;
    params.model_sinks   = { 30, 35 };

    kv_selection out;
    CHECK( kv_select(params, { mass.data(), 40, 20, 0 }, out), "two sinks, no window");
    CHECK(!kv_select(params, { mass.data(), 40, 40, 0 }, out) && out.fixed.empty() && out.window_n == 0, "no padding: no sinks either");
}

static void test_no_memory_is_wanted_where_everything_is_read() {
    CHECK(kv_select_capacity(make_params(WHISPER_KV_RULE_FULL,          10), 100) ==   0, "full");
    CHECK(kv_select_capacity(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 100), 100) ==  0, "budget = n_ctx");
    CHECK(kv_select_capacity(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 99), 100) ==  99, "budget < n_ctx");
    CHECK(kv_select_capacity(make_params(WHISPER_KV_RULE_AUDIO_ONLY,    10), 100) == 100, "all of it may be audio");
}

static void test_audio_only_ignores_budget_and_padding() {
    const auto sel = run(make_params(WHISPER_KV_RULE_AUDIO_ONLY, 10), std::vector<float>(100), 60, 0);
    CHECK(sel.fixed.empty() && sel.window_lo == 0 && sel.window_n == 60 && !sel.moves, "got %d", sel.window_n);
}

static void test_stride_is_even() {
    CHECK(run(make_params(WHISPER_KV_RULE_STRIDE, 4), std::vector<float>(10), 5, 0).fixed == positions({ 0, 2, 5, 7 }), "stride");
}

static void test_random_repeats_with_its_seed() {
    auto params = make_params(WHISPER_KV_RULE_RANDOM, 20);
    const std::vector<float> mass(1500);

    const auto a = run(params, mass, 100, 0).fixed;
    CHECK(a.size() == 20 && a == run(params, mass, 700, 9).fixed, "same seed, same positions");

    params.seed = 1;
    CHECK(a != run(params, mass, 100, 0).fixed, "other seed, other positions");
}

static void test_sink_recent_takes_both_ends() {
    const auto sel = run(make_params(WHISPER_KV_RULE_SINK_RECENT, 8), std::vector<float>(40), 20, 0);
    CHECK(sel.fixed == positions({ 0, 1 }) && sel.window_lo == 14 && sel.window_n == 6, "window %d+%d", sel.window_lo, sel.window_n);
}

static void test_top_breaks_ties_downwards_and_skips_nan() {
    std::vector<float> mass = { 0.1f, 0.5f, NAN, 0.5f, 0.2f, 0.5f, INFINITY*0.0f, 0.0f };
    CHECK(run(make_params(WHISPER_KV_RULE_FIRST_STEP_TOP, 2), mass, 4, 0).fixed == positions({ 1, 3 }), "ties");
    CHECK(run(make_params(WHISPER_KV_RULE_FIRST_STEP_TOP, 6), mass, 4, 0).fixed == positions({ 0, 1, 3, 4, 5, 7 }), "NaN comes last");

    mass.assign(8, NAN);
    CHECK(run(make_params(WHISPER_KV_RULE_FIRST_STEP_TOP, 2), mass, 4, 0).fixed == positions({ 0, 1 }), "all NaN still selects");
}

static void test_pooled_prefers_neighbourhoods() {
    //                           lone peak           plateau
    const std::vector<float> mass = { 0, 0.5f, 0, 0, 0, 0.4f, 0.4f, 0.4f, 0 };
    CHECK(run(make_params(WHISPER_KV_RULE_FIRST_STEP_TOP,    1), mass, 4, 0).fixed == positions({ 1 }), "top");
    CHECK(run(make_params(WHISPER_KV_RULE_FIRST_STEP_POOLED, 1), mass, 4, 0).fixed == positions({ 6 }), "pooled");
}

static void test_track_takes_sinks_outside_the_window() {
    std::vector<float> mass(40, 0.0f);
    mass[6]  = 9.0f; // inside the window: no sink
    mass[15] = 2.0f; // audio outside the window
    mass[33] = 1.0f; // padding

    const auto sel = run(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 8), mass, 20, 6);
    CHECK(sel.window_lo == 5 && sel.window_n == 6, "window %d+%d", sel.window_lo, sel.window_n); // 6 - 0.25*6
    CHECK(sel.fixed == positions({ 15, 33 }) && sel.moves, "sinks");

    CHECK(!run(make_params(WHISPER_KV_RULE_FIRST_STEP_SINKS, 8), mass, 20, 6).moves, "first-step-sinks stands still");
}

static void test_track_without_padding_or_with_little_audio() {
    const std::vector<float> mass(40, 0.5f);

    const auto all_audio = run(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 8), mass, 40, 39);
    CHECK(all_audio.window_lo == 34 && all_audio.fixed == positions({ 0, 1 }), "no padding: sinks come from the audio");

    const auto short_clip = run(make_params(WHISPER_KV_RULE_PADSINK_TRACK, 20), mass, 3, -1);
    CHECK(short_clip.window_lo == 0 && short_clip.window_n == 3 && short_clip.fixed.size() == 5 && short_clip.fixed[0] == 3, "3 positions of audio");
}

static void test_model_sinks_lie_behind_the_audio() {
    auto params = make_params(WHISPER_KV_RULE_PADSINK_TRACK, 8);
    params.model_sinks = { 30, 5, 25, 35, 99 };

    CHECK(run(params, std::vector<float>(40), 20, 0).fixed == positions({ 25, 30 }), "strongest two behind 20");
    CHECK(run(params, std::vector<float>(40), 40, 0).fixed.empty(), "none without padding");
}

static void test_window_stays_inside_the_audio() {
    CHECK(kv_select_window_lo(0,   10, 0.25f, 100) ==  0, "start");
    CHECK(kv_select_window_lo(50,  10, 0.25f, 100) == 48, "middle");
    CHECK(kv_select_window_lo(99,  10, 0.25f, 100) == 90, "end");
    CHECK(kv_select_window_lo(2,   10, 0.25f,   5) ==  0, "audio shorter than the window");
    CHECK(kv_select_window_lo(50,  10, 1.00f, 100) == 40, "all behind");
}

static int centre_of(const std::vector<float> & signal) {
    return kv_select_centre(signal.data(), signal.size());
}

static void test_centre_is_where_most_of_the_signal_lies() {
    std::vector<float> signal(100, 0.0f);
    CHECK(centre_of(signal) == -1 && centre_of({}) == -1, "no signal");

    signal[0] = 0.4f;
    CHECK(centre_of(signal) == 0, "lone peak at the start");

    for (int i = 60; i < 70; ++i) {
        signal[i] = 0.05f;
    }
    CHECK(centre_of(signal) == 65, "a spread hump beats a higher lone peak");

    signal[20] = NAN;
    signal[21] = INFINITY;
    CHECK(centre_of(signal) == 65, "not finite");

    signal[99] = 0.7f;
    CHECK(centre_of(signal) == 99, "lone peak at the end");

    signal.assign(100, 0.0f);
    signal[30] = signal[80] = 0.3f;
    CHECK(centre_of(signal) == 30, "ties go down");
}

int main() {
    test_every_selection_is_sound();
    test_full_and_large_budgets_read_everything();
    test_gives_up_where_nothing_is_left_to_read();
    test_no_memory_is_wanted_where_everything_is_read();
    test_audio_only_ignores_budget_and_padding();
    test_stride_is_even();
    test_random_repeats_with_its_seed();
    test_sink_recent_takes_both_ends();
    test_top_breaks_ties_downwards_and_skips_nan();
    test_pooled_prefers_neighbourhoods();
    test_track_takes_sinks_outside_the_window();
    test_track_without_padding_or_with_little_audio();
    test_model_sinks_lie_behind_the_audio();
    test_window_stays_inside_the_audio();
    test_centre_is_where_most_of_the_signal_lies();

    return check_report();
}

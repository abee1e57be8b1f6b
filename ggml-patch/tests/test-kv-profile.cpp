// kv-profile: what is read, what is refused, and that the message names the reason

#include "kv-profile.h"

#include "check.h"

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>
#include <unistd.h>

static std::string path; // of the profile under test

static std::string load(const std::string & text, whisper_kv_view_params & params, const kv_profile_shape * shape = nullptr) {
    std::ofstream(path) << text;

    std::string error;
    const bool ok = kv_profile_load(path.c_str(), shape, params, error);

    CHECK(ok == error.empty(), "an error has a message: %s", text.c_str());

    return error;
}

static void test_reads_every_field() {
    whisper_kv_view_params p;

    const std::string error = load(R"({
        "schema": 1, "model": { "n_text_layer": 6 }, "language": "en", "rule": "padsink-track", "budget": 128, "sink_fraction": 0.5,
        "tau": 0.4, "lookbehind": 0.125, "guard_eot": -1, "guard_runaway": 0, "pool": 2, "seed": 7, "sinks": "model",
        "sink_positions": [1453, 1445], "alignment_heads": [[3, 1], [4, 2]], "evidence": { "n": 100 } })", p);

    CHECK(error.empty(), "%s", error.c_str());
    CHECK(p.rule == WHISPER_KV_RULE_PADSINK_TRACK && p.budget == 128 && p.sink_fraction == 0.5f && p.tau == 0.4f, "values");
    CHECK(p.lookbehind == 0.125f && p.guard_eot == -1 && p.guard_runaway == 0.0f && p.pool == 2 && p.seed == 7, "values");
    CHECK(p.sinks == WHISPER_KV_SINKS_MODEL && p.n_sink_pos == 2 && p.sink_pos[1] == 1445, "sinks");
    CHECK(p.n_aheads == 2 && p.aheads[1][0] == 4 && p.aheads[1][1] == 2, "heads");
}

static void test_missing_fields_keep_defaults() {
    whisper_kv_view_params p, d = kv_params_default();

    CHECK(load(R"({"schema": 1})", p).empty(), "minimal profile");
    CHECK(p.budget == d.budget && p.tau == d.tau && p.rule == WHISPER_KV_RULE_PADSINK_TRACK, "defaults");
}

static void test_refusals_name_the_reason() {
    const struct { const char * text; const char * reason; } cases[] = {
        { "",                                                    "no valid JSON"    },
        { "{",                                                   "no valid JSON"    },
        { "<html>not found</html>",                              "no valid JSON"    },
        { "[]",                                                  "not a JSON object"},
        { "{}",                                                  "'schema'"         },
        { R"({"schema": 2})",                                    "newer"            },
        { R"({"schema": "1"})",                                  "'schema'"         },
        { R"({"schema": 1, "budgte": 128})",                     "'budgte'"         },
        { R"({"schema": 1, "budget": 0})",                       "budget"           },
        { R"({"schema": 1, "budget": 1501})",                    "budget"           },
        { R"({"schema": 1, "budget": 128.5})",                   "'budget'"         },
        { R"({"schema": 1, "budget": 1e300})",                   "'budget'"         },
        { R"({"schema": 1, "budget": 99999999999})",             "'budget'"         },
        { R"({"schema": 1, "budget": "128"})",                   "'budget'"         },
        { R"({"schema": 1, "tau": 2})",                          "tau"              },
        { R"({"schema": 1, "tau": []})",                         "'tau'"            },
        { R"({"schema": 1, "tau": NaN})",                        "no valid JSON"    },
        { R"({"schema": 1, "sink_fraction": -0.1})",             "sink fraction"    },
        { R"({"schema": 1, "rule": "best"})",                    "'best'"           },
        { R"({"schema": 1, "rule": 9})",                         "'rule'"           },
        { R"({"schema": 1, "sinks": "model"})",                  "sink positions"   },
        { R"({"schema": 1, "sinks": "both"})",                   "'both'"           },
        { R"({"schema": 1, "sink_positions": [1500]})",          "0..1499"          },
        { R"({"schema": 1, "sink_positions": [1.5]})",           "integers"         },
        { R"({"schema": 1, "sink_positions": 5})",               "a list"           },
        { R"({"schema": 1, "alignment_heads": [[1]]})",          "pairs"            },
        { R"({"schema": 1, "model": 5})",                        "'model'"          },
        { R"({"schema": 1, "model": {"n_text_layer": 4}})",      "another model"    },
    };

    const kv_profile_shape base = { 6, 8, 512, 51865 };

    for (const auto & c : cases) {
        whisper_kv_view_params p = kv_params_default();
        p.budget = 77;

        const std::string error = load(c.text, p, &base);
        CHECK(error.find(c.reason) != std::string::npos && error.find(path) != std::string::npos, "%s -> %s", c.text, error.c_str());
        CHECK(p.budget == 77, "params untouched after %s", c.text);
    }

    std::string big = R"({"schema": 1, "sink_positions": [0)";
    for (int i = 0; i < WHISPER_KV_MAX_SINKS; ++i) {
        big += ",1";
    }
    whisper_kv_view_params p;
    CHECK(load(big + "]}", p).find("entries at most") != std::string::npos, "list too long");

    std::string error;
    CHECK(!kv_profile_load("/nonexistent/profile.json", nullptr, p, error) && error.find("/nonexistent/profile.json") != std::string::npos, "%s", error.c_str());
}

static void test_ranges() {
    whisper_kv_view_params p = kv_params_default();
    CHECK(kv_params_error(p).empty(), "defaults are fine");

    p.tau = NAN;
    CHECK(!kv_params_error(p).empty(), "NaN is no tau");

    for (int rule = 0; rule < WHISPER_KV_RULE_COUNT; ++rule) {
        CHECK(whisper_kv_rule_from_name(whisper_kv_rule_name(rule)) == rule, "rule %d", rule);
    }
    CHECK(whisper_kv_rule_from_name("nonsense") == -1 && whisper_kv_rule_from_name(nullptr) == -1 && !whisper_kv_rule_name(99), "unknown rules");
}

// a caller of an older library: its struct ends behind `tau`, and what follows in its memory is not ours
struct older_params {
    uint32_t size = offsetof(whisper_kv_view_params, lookbehind);
    int32_t  rule, budget;
    float    sink_fraction, tau;
    uint32_t not_ours = 0xdeadbeef;

    whisper_kv_view_params * ptr() { return (whisper_kv_view_params *) this; }
};

static void test_nothing_behind_the_size_of_a_callers_struct_is_touched() {
    older_params older;

    CHECK(whisper_kv_view_default_params(older.ptr()) == WHISPER_KV_OK && older.budget == 192 && older.tau == 0.0f, "defaults");
    CHECK(older.size == offsetof(older_params, not_ours) && older.not_ours == 0xdeadbeef, "size stays, nothing is written behind it");

    older.budget = 128;

    whisper_kv_view_params p = {};
    CHECK(kv_params_read(older.ptr(), p).empty() && p.budget == 128 && p.size == sizeof(p), "read");
    CHECK(p.lookbehind == 0.25f && p.guard_eot == 50, "what is missing is default");

    p.guard_eot = 7;
    older.budget = 1;
    CHECK(!kv_params_write(p, older.ptr()).empty() && older.budget == 1, "a setting it has no place for is not lost silently");
}

static void test_wrong_sizes_and_null_are_refused() {
    whisper_kv_view_params p = {}, to = {};

    for (const uint32_t size : { 0u, 4u, (uint32_t) sizeof(p) + 1, 0xffffffffu }) {
        p.size = size;
        CHECK(whisper_kv_view_default_params(&p) == WHISPER_KV_ERR_PARAM && p.budget == 0, "size %u: not written", size);
        CHECK(kv_params_read(&p, to).find("size") != std::string::npos && to.size == 0, "size %u: not read", size);
    }

    CHECK(whisper_kv_view_default_params(nullptr) == WHISPER_KV_ERR_PARAM && !kv_params_read(nullptr, to).empty(), "NULL");
}

int main() {
    char name[] = "/tmp/kv-profile-XXXXXX";
    const int fd = mkstemp(name);
    if (fd < 0) {
        perror(name);
        return 1;
    }
    close(fd);
    path = name;

    test_reads_every_field();
    test_missing_fields_keep_defaults();
    test_refusals_name_the_reason();
    test_ranges();
    test_nothing_behind_the_size_of_a_callers_struct_is_touched();
    test_wrong_sizes_and_null_are_refused();

    unlink(name);

    return check_report();
}

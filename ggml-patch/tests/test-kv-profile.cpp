// kv-profile: what is read, what is refused, and that the message names the reason

#include "kv-profile.h"

#include "check.h"

#include <cmath>
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
    whisper_kv_view_params p, d;
    whisper_kv_view_default_params(&d);

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
        whisper_kv_view_params p;
        whisper_kv_view_default_params(&p);
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
    whisper_kv_view_params p;
    whisper_kv_view_default_params(&p);
    CHECK(kv_params_error(p).empty(), "defaults are fine");

    p.tau = NAN;
    CHECK(!kv_params_error(p).empty(), "NaN is no tau");

    whisper_kv_view_default_params(&p);
    p.size = 8;
    CHECK(!kv_params_error(p).empty(), "another version of the struct");

    for (int rule = 0; rule < WHISPER_KV_RULE_COUNT; ++rule) {
        CHECK(whisper_kv_rule_from_name(whisper_kv_rule_name(rule)) == rule, "rule %d", rule);
    }
    CHECK(whisper_kv_rule_from_name("nonsense") == -1 && whisper_kv_rule_from_name(nullptr) == -1 && !whisper_kv_rule_name(99), "unknown rules");
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

    unlink(name);

    return check_report();
}

#include "kv-profile.h"

#include "json.hpp" // nlohmann/json, from the upstream tree

#include <cstring>
#include <fstream>

using json = nlohmann::json;

static const char * const rule_names[WHISPER_KV_RULE_COUNT] = {
    "off", "full", "audio-only", "stride", "random", "sink-recent",
    "first-step-top", "first-step-pooled", "first-step-sinks", "padsink-track",
};

const char * whisper_kv_rule_name(int rule) {
    return rule >= 0 && rule < WHISPER_KV_RULE_COUNT ? rule_names[rule] : nullptr;
}

int whisper_kv_rule_from_name(const char * name) {
    for (int rule = 0; name && rule < WHISPER_KV_RULE_COUNT; ++rule) {
        if (strcmp(name, rule_names[rule]) == 0) {
            return rule;
        }
    }

    return -1;
}

whisper_kv_view_params kv_params_default() {
    whisper_kv_view_params params = {};

    params.size          = sizeof(params);
    params.rule          = WHISPER_KV_RULE_OFF;
    params.budget        = 192;
    params.sink_fraction = 0.25f;
    params.tau           = 0.0f;
    params.lookbehind    = 0.25f;
    params.guard_eot     = 50;
    params.guard_runaway = 25.0f;
    params.pool          = 3;
    params.sinks         = WHISPER_KV_SINKS_FIRST_STEP;

    return params;
}

int whisper_kv_view_default_params(struct whisper_kv_view_params * params) {
    return kv_params_write(kv_params_default(), params).empty() ? WHISPER_KV_OK : WHISPER_KV_ERR_PARAM;
}

//
// callers' structs
//

bool kv_size_is_known(uint32_t size, size_t size_ours) {
    return size > sizeof(size) && size <= size_ours; // 0 where the caller forgot it
}

static std::string size_error(const whisper_kv_view_params * params) {
    if (!params) {
        return "params is NULL";
    }
    if (!kv_size_is_known(params->size, sizeof(*params))) {
        return "params.size is " + std::to_string(params->size) + ": set it to sizeof(struct whisper_kv_view_params), which is " +
            std::to_string(sizeof(*params)) + " in this library";
    }

    return "";
}

std::string kv_params_read(const whisper_kv_view_params * from, whisper_kv_view_params & to) {
    const std::string error = size_error(from);

    if (error.empty()) {
        to = kv_params_default();
        memcpy((void *) &to, from, from->size);
        to.size = sizeof(to);
    }

    return error;
}

std::string kv_params_write(const whisper_kv_view_params & from, whisper_kv_view_params * to) {
    const std::string error = size_error(to);
    if (!error.empty()) {
        return error;
    }

    const uint32_t size     = to->size;
    const auto     defaults = kv_params_default();

    if (memcmp((const char *) &from + size, (const char *) &defaults + size, sizeof(from) - size) != 0) {
        return "some settings are newer than the program that asks for them";
    }

    memcpy((void *) to, &from, size);
    to->size = size;

    return "";
}

//
// ranges
//

// false for NaN, too
static bool in_range(double x, double lo, double hi) {
    return x >= lo && x <= hi;
}

std::string kv_params_error(const whisper_kv_view_params & p) {
    if (!whisper_kv_rule_name(p.rule))              return "unknown rule";
    if (!in_range(p.budget, 1, 1500))               return "budget must be 1..1500 positions";
    if (!in_range(p.sink_fraction, 0, 1))           return "sink fraction must be 0..1";
    if (!in_range(p.tau, 0, 1))                     return "tau must be 0..1";
    if (!in_range(p.lookbehind, 0, 1))              return "lookbehind must be 0..1";
    if (!in_range(p.guard_eot, -1, 1500))           return "guard_eot must be -1..1500 positions";
    if (!in_range(p.guard_runaway, 0, 1e6))         return "guard_runaway must be 0..1000000 tokens per second";
    if (!in_range(p.pool, 0, 64))                   return "pool must be 0..64 positions";
    if (!in_range(p.sinks, 0, 1))                   return "sinks must be first-step or model";
    if (!in_range(p.n_sink_pos, 0, WHISPER_KV_MAX_SINKS)) return "n_sink_pos must be 0.." + std::to_string(WHISPER_KV_MAX_SINKS);
    if (!in_range(p.n_aheads,  0, WHISPER_KV_MAX_AHEADS)) return "n_aheads must be 0.."   + std::to_string(WHISPER_KV_MAX_AHEADS);

    if (p.sinks == WHISPER_KV_SINKS_MODEL && p.n_sink_pos == 0) {
        return "sinks = model needs a list of sink positions";
    }
    for (int i = 0; i < p.n_sink_pos; ++i) {
        if (!in_range(p.sink_pos[i], 0, 1499)) return "sink positions must be 0..1499";
    }

    return "";
}

//
// profile
//

// the profile's values, each checked for its type; throws std::string
struct profile_reader {
    const json & object;

    const json * find(const char * key) const {
        const auto it = object.find(key);
        return it == object.end() || it->is_null() ? nullptr : &*it;
    }

    void number(const char * key, float & out) const {
        if (const json * value = find(key)) {
            if (!value->is_number()) throw std::string("'") + key + "' must be a number";
            out = value->get<float>();
        }
    }

    void integer(const char * key, int32_t & out) const {
        if (const json * value = find(key)) {
            if (!value->is_number_integer() || !in_range(value->get<double>(), -2147483648.0, 2147483647.0)) {
                throw std::string("'") + key + "' must be an integer";
            }
            out = value->get<int32_t>();
        }
    }

    std::string text(const char * key, const std::string & fallback) const {
        const json * value = find(key);
        if (value && !value->is_string()) throw std::string("'") + key + "' must be a string";
        return value ? value->get<std::string>() : fallback;
    }

    const json * list(const char * key, size_t n_max) const {
        const json * value = find(key);
        if (value && !value->is_array())     throw std::string("'") + key + "' must be a list";
        if (value && value->size() > n_max)  throw std::string("'") + key + "' may have " + std::to_string(n_max) + " entries at most";
        return value;
    }
};

static void check_keys(const json & object) {
    static const char * const known[] = {
        "schema", "model", "language", "rule", "budget", "sink_fraction", "tau", "lookbehind", "guard_eot", "guard_runaway",
        "pool", "seed", "sinks", "sink_positions", "alignment_heads", "evidence",
    };

    for (const auto & item : object.items()) {
        bool found = false;
        for (const char * key : known) {
            found |= item.key() == key;
        }
        if (!found) throw "unknown key '" + item.key() + "'";
    }
}

static void check_schema(const profile_reader & profile) {
    int32_t schema = 0;
    profile.integer("schema", schema);

    if (schema < 1) {
        throw std::string("'schema' is missing");
    }
    if (schema > KV_PROFILE_SCHEMA) {
        throw "schema " + std::to_string(schema) + " is newer than this library, which reads up to " + std::to_string(KV_PROFILE_SCHEMA);
    }
}

static void check_model(const json & model, const kv_profile_shape & shape) {
    if (!model.is_object()) throw std::string("'model' must be an object");

    const profile_reader reader = { model };

    const struct { const char * key; int32_t have; } dims[] = {
        { "n_text_layer", shape.n_layer }, { "n_text_head", shape.n_head }, { "n_text_state", shape.n_state }, { "n_vocab", shape.n_vocab },
    };

    for (const auto & dim : dims) {
        int32_t want = dim.have;
        reader.integer(dim.key, want);
        if (want != dim.have) {
            throw "made for another model: its " + std::string(dim.key) + " is " + std::to_string(want) + ", here it is " + std::to_string(dim.have);
        }
    }
}

static void read_lists(const profile_reader & profile, whisper_kv_view_params & params) {
    if (const json * sinks = profile.list("sink_positions", WHISPER_KV_MAX_SINKS)) {
        params.n_sink_pos = 0;
        for (const json & pos : *sinks) {
            if (!pos.is_number_integer()) throw std::string("'sink_positions' must hold integers");
            params.sink_pos[params.n_sink_pos++] = pos.get<int32_t>();
        }
    }

    if (const json * heads = profile.list("alignment_heads", WHISPER_KV_MAX_AHEADS)) {
        params.n_aheads = 0;
        for (const json & head : *heads) {
            if (!head.is_array() || head.size() != 2 || !head[0].is_number_integer() || !head[1].is_number_integer()) {
                throw std::string("'alignment_heads' must hold [layer, head] pairs");
            }
            params.aheads[params.n_aheads][0] = head[0].get<int32_t>();
            params.aheads[params.n_aheads][1] = head[1].get<int32_t>();
            params.n_aheads++;
        }
    }
}

static void read_profile(const json & object, const kv_profile_shape * shape, whisper_kv_view_params & params) {
    if (!object.is_object()) throw std::string("not a JSON object");

    const profile_reader profile = { object };

    check_schema(profile);
    check_keys(object);

    if (const json * model = profile.find("model")) {
        if (shape) check_model(*model, *shape);
    }

    const std::string rule = profile.text("rule", "padsink-track");
    params.rule = whisper_kv_rule_from_name(rule.c_str());
    if (params.rule < 0) throw "unknown rule '" + rule + "'";

    const std::string sinks = profile.text("sinks", "first-step");
    if (sinks != "first-step" && sinks != "model") throw "'sinks' must be first-step or model, not '" + sinks + "'";
    params.sinks = sinks == "model" ? WHISPER_KV_SINKS_MODEL : WHISPER_KV_SINKS_FIRST_STEP;

    int32_t seed = 0;
    profile.integer("seed",          seed);
    params.seed = seed;

    profile.integer("budget",        params.budget);
    profile.number ("sink_fraction", params.sink_fraction);
    profile.number ("tau",           params.tau);
    profile.number ("lookbehind",    params.lookbehind);
    profile.integer("guard_eot",     params.guard_eot);
    profile.number ("guard_runaway", params.guard_runaway);
    profile.integer("pool",          params.pool);

    read_lists(profile, params);

    const std::string wrong = kv_params_error(params);
    if (!wrong.empty()) throw wrong;
}

bool kv_profile_load(const char * path, const kv_profile_shape * shape, whisper_kv_view_params & params, std::string & error) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        error = "cannot read profile '" + std::string(path) + "': " + strerror(errno);
        return false;
    }

    whisper_kv_view_params loaded = kv_params_default();

    try {
        read_profile(json::parse(file), shape, loaded);
    } catch (const std::string & wrong) {
        error = "profile '" + std::string(path) + "': " + wrong;
        return false;
    } catch (const std::exception & wrong) {
        error = "profile '" + std::string(path) + "' is no valid JSON: " + wrong.what();
        return false;
    }

    params = loaded;

    return true;
}

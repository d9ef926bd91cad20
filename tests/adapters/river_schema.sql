-- River's tables as its migrations of version 8 leave them, as far as workers and clients meet them: the same columns,
-- types, defaults, constraints and indexes (compared with those of River 0.51.1), for machines without River's own tool.
-- Version 7 has the same, version 6 has no river_notification; see older() in river.py.

CREATE TYPE river_job_state AS ENUM (
    'available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled'
);

CREATE TABLE river_job (
    id bigserial PRIMARY KEY,
    state river_job_state DEFAULT 'available' NOT NULL,
    attempt smallint DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 25 NOT NULL CONSTRAINT max_attempts_is_positive CHECK (max_attempts > 0),
    attempted_at timestamptz,
    created_at timestamptz DEFAULT now() NOT NULL,
    finalized_at timestamptz,
    scheduled_at timestamptz DEFAULT now() NOT NULL,
    priority smallint DEFAULT 1 NOT NULL CONSTRAINT priority_in_range CHECK (priority >= 1 AND priority <= 4),
    args jsonb NOT NULL,
    attempted_by text[],
    errors jsonb[],
    kind text NOT NULL CONSTRAINT kind_length CHECK (char_length(kind) > 0 AND char_length(kind) < 128),
    metadata jsonb DEFAULT '{}' NOT NULL,
    queue text DEFAULT 'default' NOT NULL CONSTRAINT queue_length CHECK (char_length(queue) > 0 AND char_length(queue) < 128),
    tags varchar(255)[] DEFAULT '{}' NOT NULL,
    unique_key bytea,
    unique_states bit(8)
);
ALTER TABLE river_job ADD CONSTRAINT finalized_or_finalized_at_null CHECK (
    (finalized_at IS NULL AND state NOT IN ('cancelled', 'completed', 'discarded'))
    OR (finalized_at IS NOT NULL AND state IN ('cancelled', 'completed', 'discarded'))
);

-- Whether a state is among those that a job asked to be unique in: a bit for each, the first state's is the last one.
CREATE FUNCTION river_job_state_in_bitmask(bitmask bit(8), state river_job_state) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(get_bit(bitmask, 8 - array_position(
        ARRAY['available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled'],
        state::text)), 0) = 1
$$;

CREATE INDEX river_job_kind ON river_job (kind);
CREATE INDEX river_job_state_and_finalized_at_index ON river_job (state, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX river_job_prioritized_fetching_index ON river_job (state, queue, priority, scheduled_at, id);
CREATE INDEX river_job_args_index ON river_job USING gin (args);
CREATE INDEX river_job_metadata_index ON river_job USING gin (metadata);
CREATE UNIQUE INDEX river_job_unique_idx ON river_job (unique_key)
    WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL AND river_job_state_in_bitmask(unique_states, state);

CREATE TABLE river_queue (
    name text PRIMARY KEY,
    created_at timestamptz DEFAULT now() NOT NULL,
    metadata jsonb DEFAULT '{}' NOT NULL,
    paused_at timestamptz,
    updated_at timestamptz DEFAULT CURRENT_TIMESTAMP NOT NULL
);

CREATE UNLOGGED TABLE river_leader (
    elected_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    leader_id text NOT NULL CONSTRAINT leader_id_length CHECK (char_length(leader_id) > 0 AND char_length(leader_id) < 128),
    name text DEFAULT 'default' PRIMARY KEY CONSTRAINT name_length CHECK (name = 'default')
);

CREATE TABLE river_notification (
    id bigserial PRIMARY KEY,
    created_at timestamptz DEFAULT now() NOT NULL,
    payload text NOT NULL,
    topic text NOT NULL CONSTRAINT topic_length CHECK (length(topic) > 0 AND length(topic) < 128)
);
CREATE INDEX river_notification_created_at_idx ON river_notification (created_at);
CREATE INDEX river_notification_topic_id_idx ON river_notification (topic, id);

CREATE TABLE river_migration (
    line text CONSTRAINT line_length CHECK (char_length(line) > 0 AND char_length(line) < 128),
    version bigint CONSTRAINT version_gte_1 CHECK (version >= 1),
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT river_migration_pkey1 PRIMARY KEY (line, version)
);
INSERT INTO river_migration (line, version) SELECT 'main', generate_series(1, 8);

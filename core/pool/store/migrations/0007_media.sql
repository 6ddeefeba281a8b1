-- Images and other data that messages hold as data: URLs, once each; the message's body names them.
CREATE TABLE media (
    content_hash    UUID NOT NULL,
    url             VARCHAR NOT NULL            -- data:<type>;base64,...
);
